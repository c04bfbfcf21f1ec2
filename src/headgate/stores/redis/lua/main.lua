-- One call: its arguments are decoded, every command is decided, and what changed is written. wire.py is the other end.
--
-- args: the frame (format; policies: fingerprint, compiled …; zones: name, offsets …; heads: what commands have in
-- common), which is mostly the same from call to call; seen; told (the epoch, or a session); now (0: the
-- server's); then the commands. Where all of
-- them have one head in common, and it is of asks or ends, that is their arguments: of an ask its id, and its holder
-- and its attempt where it has one; of an end its id and when it was granted, with the fence after a colon where the id
-- is a caller's; with the packed key where its limits are by one. Else they come in runs: the number of a head, how many
-- have it, and their arguments; heads of other commands are all there is of them.

local FORMAT = '1'
-- For how long an idle gate is kept at least.
local IDLE = 7 * 86400 * SECOND
-- The packed key of an ask that has none.
local NO_KEY = '\144'

-- Frames, and the rest of the last gate's head, as they were last decoded: a library caches them.
local FRAMES, LARGEST = 256, 4096
local frames_made, frames_known = 0, {}
local NEW = {FORMAT, 0, '', 0, 0, 0, 0, 0, '', '', 0, '', 0}
local rest_packed, rest_known = '', NEW

local function frame_of(raw)
  local parts = unpacked(raw)
  local frame = {format = parts[1], policies = {}, zones = parts[3], heads = {}}
  for index = 1, #parts[2], 2 do frame.policies[parts[2][index]] = parts[2][index + 1] end
  local lasting = #raw <= LARGEST and #parts[3] == 0
  for index, packed in ipairs(parts[4]) do
    local common = unpacked(packed)
    frame.heads[tostring(index)] = common
    if common[1] == 'a' or common[1] == 'e' then
      common.argued = common[1] == 'e' or common[10]
      common.attempted = common[1] == 'a' and common[11]
      common.size = 1 + (common.argued and 1 or 0) + (common.attempted and 1 or 0) + (common[3] and 1 or 0)
      if common[1] == 'a' then
        common.ask = {lease = common[4], plain = common[5], waits = common[6], remembered = common[7], latest = common[8],
          session = common[9]}
      end
      frame.only = #parts[4] == 1 and common
    else
      lasting = false -- a head that is sent whole is used once
    end
  end
  if lasting then
    if frames_made >= FRAMES then frames_made, frames_known = 0, {} end
    frames_made = frames_made + 1
    frames_known[raw] = frame
  end
  return frame
end

local function pairs_of(list)
  if not list then return false end
  local made = {}
  for _, pair in ipairs(list) do made[pair[1]] = pair[2] end
  return made
end

local function decide(now, common, id, argument, attempt, key)
  local op = common[1]
  if op == 'a' then return admit(now, common.ask, plan_for(common[2], key), id, argument, attempt) end
  if op == 'e' then
    local end_ = common.end_
    if not end_ then
      end_ = {outcome = common[4], remembered = common[5], retry_after = common[6], actual = pairs_of(common[7]),
        confirmed = common[8], worth = common[9]}
      common.end_ = end_
    end
    local at, fence = tonumber(argument), 0
    if not at then
      at, fence = partition(argument, ':')
      at, fence = tonumber(at), tonumber(fence)
    end
    return settle(now, end_, plan_for(common[2], key), id, at, fence)
  end
  if op == 'r' then
    return release(now, policy_of(common[2]), common[3], common[4], common[5], pairs_of(common[6]), common[7])
  end
  if op == 'c' then return cancel(now, policy_of(common[2]), common[3], common[4], common[5]) end
  if op == 's' then return stamp(now, common) end
  local changes = changes_module()
  if op == 'l' then
    local lease = lease_of(policy_of(common[2]), common[3], common[4])
    if not lease then return {'P', begin(now), {common[3], 0}, {}, {}, '', 0, 0} end
    local pulse = changes.n(now, {'n', '', {lease}, {}, true})
    if records.head.tickets > 0 then
      -- The lease may end sooner than before, and a ticket wait for just that.
      local line = line_module()
      line.freed(records.head.now, recall(lease[1]).steps)
      line.serve(records.head.now)
    end
    return pulse
  end
  return changes[op](now, common)
end

-- Why a call begins anew: a line of which keys are gone.
local BROKEN_LINE = {}

-- The reply of a command whose decision raised; the second is true where the script needs to know more before it can
-- decide.
local function failed(reply)
  records.last = false
  if type(reply) == 'string' and records.head.tickets > 0 and not records.forgets_line and find(reply, 'attempt to') then
    return BROKEN_LINE, true
  end
  if type(reply) ~= 'table' or not (reply.need or reply.reply) then error(reply) end
  if not reply.need then return reply.reply end
  -- Nothing has been written but what was sent of calendars: the client sends it all again, with what was missing.
  local zones = space('zones')
  if zones.dirty then zones:write(ceil(records.life / 1000)) end
  return {'N', reply.need[1], reply.need[2]}, true
end

-- Publish to processes which of their tickets to wake. Calls of a process that no longer subscribes go to other
-- tickets, which are published as well.
local function publish(now)
  while #records.wakes > 0 do
    local messages, unheard = {}, false
    for _, wake in ipairs(records.wakes) do
      local mine = messages[wake[1]] or {}
      messages[wake[1]] = mine
      mine[#mine + 1] = {wake[2], wake[3] and format('%.0f', wake[3]) or cjson.null}
    end
    records.wakes = {}
    local line = line_module()
    for session, mine in pairs(messages) do
      local channel = string.sub(TAG, 1, find(TAG, '{', 1, true) - 1) .. 'wake:' .. session -- under the keys' own prefix
      local subscribers = redis.pcall('PUBLISH', channel, cjson.encode(mine))
      if type(subscribers) == 'number' and line.published(now, session, subscribers) then unheard = true end
    end
    if unheard then line.serve(now) end
  end
end

local function main(keys, args, forgets_line)
  call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
  TAG = keys[1]
  begin_records()
  if made_line then made_line.begin() end
  local frame = frames_known[args[1]] or frame_of(args[1])
  local found = call('HMGET', TAG, 'seq', 'now', 'rest')
  -- format, paused, reason, overrides, tickets, lost; for how long an idle gate is kept, when that was last seen to, which
  -- keys have been given that end (records.lua), a policy that is known to be there (plan.lua), how many lines were lost; epoch, lost_before
  local packed = found[3] or ''
  if packed ~= rest_packed then
    rest_packed = packed
    rest_known = packed ~= '' and unpacked(packed) or NEW
  end
  local rest = rest_known
  if rest[1] ~= FORMAT or frame.format ~= FORMAT then return {'F', rest[1]} end
  local head = {seq = tonumber(found[1] or 0), now = tonumber(found[2] or 0), paused = rest[2], reason = rest[3],
    overrides = rest[4], tickets = rest[5], lost = rest[6], life = rest[7], fresh = rest[8], ends = rest[9],
    policy = rest[10], line = rest[11], epoch = rest[12] or '', lost_before = rest[13] or 0}
  records.head = head
  if forgets_line then
    head.line, head.tickets, records.torn, records.forgets_line = head.line + 1, 0, true, true
  end
  begin_line(head.line)
  records.life = max(head.life, IDLE)
  compare(tonumber(args[2]), args[3])
  -- The head was lost, and the states were not.
  if not found[1] then records.torn = call('EXISTS', states.key) == 1 end

  local now = tonumber(args[4])
  if now == 0 then
    local time = call('TIME')
    now = tonumber(time[1]) * SECOND + tonumber(time[2])
  end

  -- Where overrides keep the head for ever, the keys beside it may have expired.
  if now - head.fresh > head.life / 4 then head.ends, head.policy = '', '' end

  -- --- decoding ---------------------------------------------------------------------------------------------------------

  begin_plans(frame.policies)
  for index = 1, #frame.zones, 2 do
    local zones, name, packed = space('zones'), frame.zones[index], frame.zones[index + 1]
    zones.packed = zones.packed or {}
    zones.packed[name] = packed
    zones:set(name, unpacked(packed))
  end

  -- --- deciding ---------------------------------------------------------------------------------------------------------

  local replies, writes, cursor, last = {}, false, 5, #args
  local common = frame.only
  if common and common.size == last - 4 then
    -- One command, as most calls have while a process is uncontended.
    local attempt = common.attempted and args[common[3] and last - 1 or last] or ''
    local fine, reply = pcall(decide, now, common, args[5], common.argued and args[6], attempt,
      common[3] and args[last] or NO_KEY)
    if not fine then
      local need
      reply, need = failed(reply)
      if need then return reply ~= BROKEN_LINE and reply or main(keys, args, true) end
    end
    replies[1], writes = reply, true
  else
    -- Of each command: its head, and its id, argument, attempt and key where it has one.
    local todo, ids, arguments, attempts, given, commands, count = {}, {}, {}, {}, {}, 0, last
    local named, tombstones = records.ids, {}
    while cursor <= last do
      if not frame.only then
        common, count = frame.heads[args[cursor]], tonumber(args[cursor + 1])
        cursor = cursor + 2
      end
      local size, argued, keyed = common.size, common.argued, common[3]
      for _ = 1, size and min(count, (last + 1 - cursor) / size) or count do
        commands = commands + 1
        todo[commands] = common
        if size then
          local id = args[cursor]
          ids[commands], named[#named + 1] = id, id
          if argued then arguments[commands] = args[cursor + 1] end
          cursor = cursor + size
          if keyed then given[commands] = args[cursor - 1] end
          if common.attempted then
            attempts[commands] = args[keyed and cursor - 2 or cursor - 1]
            tombstones[#tombstones + 1] = id .. ' ' .. attempts[commands]
          end
        end
      end
      if size or common[1] ~= 'p' then writes = true end
    end
    if #named > 1 then
      permits:prefetch(named)
      if head.tickets > 0 then space('tickets'):prefetch(named) end
    end
    if #tombstones > 0 then permits:prefetch(tombstones) end
    -- One that raises leaves the others as they are: those after it go on from there.
    local index, alike, reply = 0, 0, nil
    local function decide_all()
      while index < commands do
        local one, key, many = todo[index + 1], given[index + 1], 0
        if index >= alike then -- up to where they are as this one
          alike = index + 1
          while todo[alike + 1] == one and given[alike + 1] == key do alike = alike + 1 end
        end
        if one.ask and alike > index + 1 and not one.attempted then
          many, reply = admit_many(now, one.ask, plan_for(one[2], key or NO_KEY), ids, arguments, index + 1, alike - index)
          index = index + many
        end
        if many == 0 then
          index = index + 1
          reply = decide(now, one, ids[index], arguments[index] or false, attempts[index] or '', key or NO_KEY)
        end
        if reply then
          if reply ~= records.last then records.last = false end -- only the last one may yet stand for more
          replies[#replies + 1] = reply
        end
      end
    end
    while index < commands do
      local fine, problem = pcall(decide_all)
      if not fine then
        local need
        reply, need = failed(problem)
        if need then return reply ~= BROKEN_LINE and reply or main(keys, args, true) end
        replies[#replies + 1] = reply
      end
    end
  end

  -- --- writing ----------------------------------------------------------------------------------------------------------

  if #records.wakes > 0 then publish(head.now) end
  if made_line then made_line.finish() end
  local life, due = records.life, false
  if records.far - head.now > life then life = floor((records.far - head.now) * 1.25) end
  if writes then
    -- Keys that live as long as the gate are refreshed now and then, not with every write.
    due = life ~= head.life or head.now - head.fresh > life / 8 or head.fresh > head.now or head.overrides ~= rest[4]
    if due then head.life, head.fresh = life, head.now end
  end
  -- A call that only looks writes nothing but the calendars that were sent with it.
  local milliseconds = ceil(life / 1000)
  write_records(milliseconds, due)
  if writes or records.noticed or head.ends ~= rest[9] then
    if due or head.paused ~= rest[2] or head.reason ~= rest[3] or head.tickets ~= rest[5] or head.lost ~= rest[6]
      or head.ends ~= rest[9] or head.policy ~= rest[10] or head.epoch ~= rest[12] or head.lost_before ~= rest[13] then
      local fresh = {FORMAT, head.paused, head.reason, head.overrides, head.tickets, head.lost, head.life, head.fresh,
        head.ends, head.policy, head.line, head.epoch, head.lost_before}
      call('HSET', TAG, 'seq', head.seq, 'now', head.now, 'rest', pack(fresh))
    else
      call('HSET', TAG, 'seq', head.seq, 'now', head.now)
    end
  end
  if due then
    if head.overrides > 0 then call('PERSIST', TAG) else call('PEXPIRE', TAG, milliseconds) end
    for _, name in ipairs({'states', 'states:z', 'permits', 'permits:z', 'policies', 'zones', 'assumed', 'names/leases',
      'names/windows', 'names/promised'}) do
      call('PEXPIRE', TAG .. ':' .. name, milliseconds)
    end
    local number = head.line > 0 and '.' .. head.line or ''
    for kind, ending in pairs({tickets = '', lanes = '', line = '', calls = ':z', sessions = '', due = ':z', young = ':z'}) do
      call('PEXPIRE', TAG .. ':' .. kind .. number .. ending, milliseconds)
    end
    call('PEXPIRE', TAG .. ':sessions' .. number .. ':z', milliseconds)
  end
  local lost = records.noticed and 1 or records.noticed_before and 2 or 0
  -- A call that only peeks has not noticed that this is another state than the caller's.
  local epoch = writes and head.epoch ~= args[3] and head.epoch or nil
  return {head.seq, max(now, head.now), lost, replies, epoch}
end
