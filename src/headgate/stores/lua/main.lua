-- One call: what was sent is taken apart, every command decided, and what changed is written. redis_wire.py is the other end.
--
-- args: format, seen, now (0: the server's), then each with its number before it: policies (fingerprint, compiled), zones
-- (name, offsets), heads (what commands have in common); then the commands: the number of a head, and its arguments where
-- it is an ask (id, holder) or an end (id, granted at), with the packed key where its limits are by one.

local FORMAT = '1'
-- For how long an idle gate is kept at least.
local IDLE = 7 * 86400 * SECOND
-- The packed key of an ask that has none.
local NO_KEY = '\144'

local changes = nil

local function pairs_of(list)
  if not list then return false end
  local made = {}
  for _, pair in ipairs(list) do made[pair[1]] = pair[2] end
  return made
end

local function decide(now, common, id, argument, key)
  local op = common[1]
  if op == 'a' then
    local ask = common.ask
    if not ask then
      ask = {lease = common[4], plain = common[5], waits = common[6], remembered = common[7], latest = common[8],
        session = common[9]}
      common.ask = ask
    end
    return admit(now, ask, plan_for(common[2], key), id, argument ~= '' and argument:sub(2))
  end
  if op == 'e' then
    local end_ = common.end_
    if not end_ then
      end_ = {outcome = common[4], remembered = common[5], retry_after = common[6], actual = pairs_of(common[7]),
        confirmed = common[8], worth = common[9]}
      common.end_ = end_
    end
    return settle(now, end_, plan_for(common[2], key), id, tonumber(argument))
  end
  if op == 'r' then
    return release(now, policy_of(common[2]), common[3], common[4], common[5], pairs_of(common[6]))
  end
  if op == 'c' then return cancel(now, policy_of(common[2]), common[3]) end
  changes = changes or changes_module()
  if op == 'l' then
    local lease = lease_of(policy_of(common[2]), common[3], common[4])
    if not lease then return {'P', begin(now), {common[3], 0}, {}, {}, '', 0, 0} end
    return changes.n(now, {'n', '', {lease}, {}})
  end
  return changes[op](now, common)
end

local function main(keys, args)
  call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
  TAG = keys[1]
  made_line = false
  begin_records()
  local found = call('HMGET', TAG, 'seq', 'now', 'rest')
  -- format, paused, reason, overrides, tickets, lost; for how long an idle gate is kept, and when that was last seen to
  local rest = found[3] and unpacked(found[3]) or {FORMAT, 0, '', 0, 0, 0, 0, 0}
  if rest[1] ~= FORMAT or args[1] ~= FORMAT then return {'F', rest[1]} end
  local head = {seq = tonumber(found[1] or 0), now = tonumber(found[2] or 0), paused = rest[2], reason = rest[3],
    overrides = rest[4], tickets = rest[5], lost = rest[6], life = rest[7], fresh = rest[8]}
  records.head = head
  records.life = max(head.life, IDLE)
  records.seen = tonumber(args[2])

  local now = tonumber(args[3])
  if now == 0 then
    local time = call('TIME')
    now = tonumber(time[1]) * SECOND + tonumber(time[2])
  end

  -- --- taking it apart --------------------------------------------------------------------------------------------------

  local cursor, policies = 4, {}
  for _ = 1, tonumber(args[cursor]) do
    policies[args[cursor + 1]] = args[cursor + 2]
    cursor = cursor + 2
  end
  begin_plans(policies)
  cursor = cursor + 1
  for _ = 1, tonumber(args[cursor]) do
    local zones = space('zones')
    zones.packed = zones.packed or {}
    zones.packed[args[cursor + 1]] = args[cursor + 2]
    zones:set(args[cursor + 1], unpacked(args[cursor + 2]))
    cursor = cursor + 2
  end
  cursor = cursor + 1
  local heads, count = {}, tonumber(args[cursor])
  for index = 1, count do heads[index] = unpacked(args[cursor + index]) end
  cursor = cursor + count + 1

  -- Of each command: its head, its two arguments, its key.
  local todo, ids, arguments, given, commands, writes = {}, {}, {}, {}, 0, false
  local last = #args
  while cursor <= last do
    local common = heads[tonumber(args[cursor])]
    local op = common[1]
    commands = commands + 1
    todo[commands] = common
    ids[commands], arguments[commands], given[commands] = '', '', NO_KEY
    if op == 'a' or op == 'e' then
      ids[commands], arguments[commands] = args[cursor + 1], args[cursor + 2]
      cursor = cursor + 3
      if common[3] then
        given[commands] = args[cursor]
        cursor = cursor + 1
      end
      writes = true
    else
      cursor = cursor + 1
      if op ~= 'p' then writes = true end
    end
  end
  if commands > 1 then
    records.ids = ids
    permits:prefetch(ids)
    if head.tickets > 0 then space('tickets'):prefetch(ids) end
  end

  -- --- deciding ---------------------------------------------------------------------------------------------------------

  local replies = {}
  for index = 1, commands do
    local fine, reply = pcall(decide, now, todo[index], ids[index], arguments[index], given[index])
    if not fine then
      if type(reply) ~= 'table' or not (reply.need or reply.reply) then error(reply) end
      if reply.need then
        -- Nothing has been written but what was sent of calendars: the client sends it all again, with what was missing.
        local zones = space('zones')
        if zones.dirty then zones:write(ceil(records.life / 1000)) end
        return {'N', reply.need[1], reply.need[2]}
      end
      reply = reply.reply
    end
    replies[index] = reply
  end

  -- --- writing ----------------------------------------------------------------------------------------------------------

  if made_line then made_line.finish() end
  local life, due = records.life, false
  if records.far - head.now > life then life = floor((records.far - head.now) * 1.25) end
  if writes then
    -- What lives as long as the gate is refreshed now and then, not with every write.
    due = life ~= head.life or head.now - head.fresh > life / 8 or head.fresh > head.now or head.overrides ~= rest[4]
    if due then head.life, head.fresh = life, head.now end
    local seq, last = format('%.0f', head.seq), format('%.0f', head.now)
    if due or head.paused ~= rest[2] or head.reason ~= rest[3] or head.tickets ~= rest[5] or head.lost ~= rest[6] then
      local fresh = {FORMAT, head.paused, head.reason, head.overrides, head.tickets, head.lost, head.life, head.fresh}
      call('HSET', TAG, 'seq', seq, 'now', last, 'rest', pack(fresh))
    else
      call('HSET', TAG, 'seq', seq, 'now', last)
    end
  end
  -- Who only looks has at most tidied up what had run off.
  local milliseconds = ceil(life / 1000)
  for kind, named in pairs(spaces) do
    -- What a person has set stays until that person says otherwise.
    local kept = kind ~= 'overrides' and milliseconds or nil
    for _, one in pairs(named) do
      if one.dirty then one:write(kept) end
    end
  end
  if due then
    if head.overrides > 0 then call('PERSIST', TAG) else call('PEXPIRE', TAG, milliseconds) end
    for _, name in ipairs({'states', 'states:z', 'permits', 'permits:z', 'policies', 'zones', 'assumed', 'names/leases',
      'names/windows', 'names/promised'}) do
      call('PEXPIRE', TAG .. ':' .. name, milliseconds)
    end
  end
  if #records.wakes > 0 then
    local told = {}
    for _, wake in ipairs(records.wakes) do
      local mine = told[wake[1]] or {}
      told[wake[1]] = mine
      mine[#mine + 1] = {wake[2], wake[3] and format('%.0f', wake[3]) or cjson.null}
    end
    for session, mine in pairs(told) do redis.pcall('PUBLISH', 'hg:wake:' .. session, cjson.encode(mine)) end
  end

  return {head.seq, max(now, head.now), records.noticed and 1 or 0, replies}
end
