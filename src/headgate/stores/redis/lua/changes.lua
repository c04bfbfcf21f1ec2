-- The commands that decide nothing: heartbeats, looking, changing. Made when a call has one of them.

-- --- renew.py ---------------------------------------------------------------------------------------------------------

local function renew_lease(now, before, lease, exactly)
  local ref, id, at, length, fence, holder = lease[1], lease[2], lease[3], lease[4], lease[5], lease[6]
  local plan = recall(ref)
  local expires = now + length
  local permit = permits:get(id)
  if permit and (permit[6] or permit[4] ~= fence) then return 0 end -- it has ended; the id may be another permit's by now
  for _, step in ipairs(plan.steps) do
    if step.limit.leased then
      local leases = space('leases', step.member)
      prune(leases, now)
      -- Where the store lost its state, the holder has not lost its slot: it registers again.
      if not leases:get(id) and at >= before and not step.limit:recover(now, step.member) then return 0 end
      local row = leases:get(id)
      if row and row[3] ~= fence then return 0 end
      -- A heartbeat never shortens a lease: another process may have extended it by its id.
      if not exactly then expires = max(expires, leases:score(id) or 0) end
    end
  end
  for _, step in ipairs(plan.steps) do
    if step.limit.leased then
      local row = space('leases', step.member):get(id)
      local fresh = {ref, at, fence, holder, row and row[5], row and row[6]}
      step.limit:charge(now, step.member, 1, step.value, at, {id, expires, fresh})
    end
  end
  if permit then
    local fresh = {}
    for index = 1, #permit do fresh[index] = permit[index] end
    fresh[3] = expires
    permits:set(id, fresh)
  end
  return expires
end

function changes.n(now, head)
  now = begin(now)
  local session, leases, tickets = head[2], head[3], head[4]
  local before, expires, called, unknown = lost_before(), {}, {}, {}
  for _, lease in ipairs(leases) do
    expires[#expires + 1] = lease[2]
    expires[#expires + 1] = renew_lease(now, before, lease, head[5])
  end
  local line = line_module()
  if records.head.tickets > 0 then
    local woke = #tickets > 0 and line.hear(now, session)
    if woke or now >= line.line_state().timer_at then line.serve(now) end
  end
  if #tickets > 0 then
    space('tickets'):prefetch(tickets)
    line.look_up(tickets, called, unknown)
  end
  local timer, timer_at = line.line_state().timer, line.line_state().timer_at
  local sessions = #tickets > 0 and space('sessions'):len() or 0
  return {'P', now, expires, called, unknown, timer, timer_at, sessions}
end

-- --- peek.py ----------------------------------------------------------------------------------------------------------

local function exact(number)
  return number and format('%.17g', number)
end

local function described(now, step)
  local usage = step.limit:describe(now, step.member, step.value)
  if step.rank >= 0 then usage[1] = partition(step.member, '|') end
  for index = 5, #usage do usage[index] = exact(usage[index]) end
  return usage
end

-- The leases of the blocking limit, or of all.
local function holders(now, blocking)
  local rows, seen = {}, {}
  for _, member in ipairs(blocking and {blocking} or names('leases')) do
    local leases = space('leases', member)
    local found = leases:scan(now + 1)
    leases:prefetch_pairs(found)
    for _, pair in ipairs(found) do
      local id = pair[2]
      local row, place = leases:get(id), seen[id] or #rows + 1
      if row then
        local ref = unpacked(row[1])
        seen[id] = place
        rows[place] = {id, row[4], ref[4], row[2], pair[1], ref[2]}
      end
    end
  end
  return rows
end

-- How many waiters are listed: those that have waited longest.
local WAITERS = 50

-- Fill in what a ticket waits for and when it goes; `before` others of its lane go first, and the line is at `at`. Returns
-- when the next one can go.
local function turn_of(now, ticket, row, before, at, left_of)
  local state, head = line_module().line_state(), records.head
  local plan = recall(ticket.ref)
  local lane = space('lanes'):get(ticket.tier .. '.' .. ticket.rank .. '.' .. ticket.lane)
  local parked, pace = lane and lane[2] or '', 0
  for _, step in ipairs(head.overrides > 0 and current(plan) or plan.steps) do
    local limit = step.limit
    if not limit.leased and not step.keyed then pace = max(pace, step.cost * limit:pace(step.value)) end
    if step.member == parked or (parked == '' and step.base == state.limit) then
      local known = left_of[limit] or {}
      left_of[limit] = known
      local left = known[step.member] or limit:describe(now, step.member, step.value)[7]
      known[step.member] = left
      if not row[8] or left < row[9] then row[8], row[9] = step.base, left end
      if limit.leased and parked == '' then -- renewals move it, and the line does not hear of them
        local ends = limit:earliest(now, step.member, step.cost, step.value, now)
        if ends < NEVER then at = max(at, ends) end
      end
    end
    if step.member == parked then
      local own = limit.leased and 0 or step.cost * limit:pace(step.value)
      row[10] = (space('due'):score(parked) or now) + floor(before * own)
    end
  end
  if parked == '' then
    row[10] = at
    at = at + floor(pace)
  end
  row[10] = max(row[10], head.paused, now)
  return at
end

local function waiters(now)
  local found, rows, waiting, lanes, line = {}, {}, {}, {}, line_module()
  for _, session in ipairs(space('sessions'):scan()) do
    for _, pair in ipairs(space('of', session[2]):scan(nil, WAITERS)) do found[#found + 1] = pair end
  end
  table.sort(found, is_before)
  for at = WAITERS + 1, #found do found[at] = nil end
  space('tickets'):prefetch_pairs(found)
  for at, pair in ipairs(found) do
    local ticket = line.find(pair[2])
    local ref = unpacked(ticket.ref)
    local state = ticket.called ~= 0 and 'called' or ticket.hidden ~= 0 and 'skipped' or 'waits'
    for _, cost in ipairs(ref[3]) do cost[2] = exact(cost[2]) end
    rows[at] = {ticket.id, ticket.holder, ref[4], ticket.since, ticket.rank, ref[3], state, false, 0, now}
    if state == 'waits' then
      local lane = ticket.tier .. ' ' .. ticket.lane
      lanes[lane] = (lanes[lane] or -1) + 1
      waiting[#waiting + 1] = {ticket.tier, lanes[lane], ticket.arrival, ticket, rows[at]}
    end
  end
  -- About as the line takes turns: the higher tier first, then the first of each lane, the second of each lane, …
  table.sort(waiting, function(one, other)
    for part = 1, 3 do
      if one[part] ~= other[part] then return one[part] < other[part] end
    end
    return false
  end)
  local at = line.line_state().free_at
  local left_of = {} -- what is left of limits that were looked at
  for _, turn in ipairs(waiting) do at = turn_of(now, turn[4], turn[5], turn[2], at, left_of) end
  for _, row in ipairs(rows) do row[9], row[10] = exact(row[9]), format('%.0f', row[10]) end
  return rows
end

-- An ask that does not wait, and is not charged: see `grant`.
local QUESTION = {lease = 0, plain = false, waits = false, remembered = false, latest = 0, session = '', looks = true}

-- What would become of an ask: false where it would go now.
local function question(now, plan)
  local reply = decide_ask(now, QUESTION, plan, '', false, '')
  if reply and reply[1] == 'R' and tonumber(reply[4]) < NEVER then -- of a promise gate: its time is still to come
    return wait_of(tonumber(reply[4]), reply[2], records.head.tickets + 1, nil, now, not reply[2] and 'paused' or '')
  end
  return reply
end

-- The member of the limit that is waited for, whose holders are of interest; nil where it is no limit.
local function blocking_member(now, steps, limit)
  local at, member = now, nil
  for _, step in ipairs(steps) do
    if step.base == limit then
      local moment = step.limit:earliest(now, step.member, step.cost, step.value, now)
      if not member or moment > at then at, member = moment, step.member end
    end
  end
  return member
end

-- At most so many keys of a limit are looked at.
local KEYS = 10000

-- The keys that use most of a limit, of those that have `search` in them: see `_keys` of peek.py.
local function keys_of(now, policy, name, top, search)
  local limit
  for index, row in ipairs(policy.rows) do
    if row[8] < 0 and row[6] == name then limit = limit_of(policy, index) end
  end
  local begins, overridden, seen, members = name .. '|', records.head.overrides > 0, 0, {}
  for _, pair in ipairs(states:scan()) do
    local member = pair[2]
    if member:sub(1, #begins) == begins then
      seen = seen + 1
      if seen > KEYS then break end
      if search == '' or find(member:sub(#begins + 1), search, 1, true) then members[#members + 1] = member end
    end
  end
  states:prefetch(members)
  local found = {}
  for _, member in ipairs(members) do
    local state = states:get(member)
    if state and state[1] == limit.kind then
      local value = overridden and value_of(name, member, limit.limit, 1) or limit.limit
      found[#found + 1] = {-limit.rough_use(now, member, state) / value, member, value}
    end
  end
  table.sort(found, is_before)
  local rows = {}
  for at = 1, min(#found, 4 * top) do
    local row = limit:describe(now, found[at][2], found[at][3])
    if row[5] > 0 or row[12] > 0 then rows[#rows + 1] = row end
  end
  table.sort(rows, function(one, other) return is_before({-one[8], one[4]}, {-other[8], other[4]}) end)
  for at = #rows, top + 1, -1 do rows[at] = nil end
  for _, row in ipairs(rows) do
    for index = 5, #row do row[index] = exact(row[index]) end
  end
  return rows
end

-- An override as it is told: limit, key, value, reason, seconds until it ends, 1 where it only lowers.
local function told_override(now, member, value, ends, reason, tightened)
  local name, key = partition(member, '|')
  return {name, key ~= '' and key or false, exact(value), reason, ends < NEVER and exact((ends - now) / SECOND) or false,
    tightened}
end

-- What operators have set, and of each member's tightenings the one in force.
local function listed(now)
  local overrides, terms, found, lowered = space('overrides'), space('terms'), {}, {}
  for index, pair in ipairs(overrides:scan()) do
    local member = pair[2]
    local term = terms:get('=' .. member) or {NEVER, ''}
    found[index] = told_override(now, member, overrides:get(member), term[1], term[2], 0)
  end
  for _, pair in ipairs(terms:scan()) do
    if pair[2]:sub(1, 1) == '<' then lowered[#lowered + 1] = {0, pair[2]} end
  end
  table.sort(lowered, is_before)
  for _, pair in ipairs(lowered) do
    local row = terms:get(pair[2])[1]
    found[#found + 1] = told_override(now, pair[2]:sub(2), row[1], row[2], row[3], 1)
  end
  return found
end

local function look(now, wanted)
  local head, asked = records.head, wanted[3]
  local seq = head.seq
  if now < head.now then now = head.now end
  head.now = now
  notice(now)
  if head.overrides > 0 then lapse() end
  local overdue = 0
  if head.tickets > 0 and now >= line_module().line_state().timer_at then
    overdue = line_module().line_state().timer_at
    line_module().serve(now) -- as the next decision will
  end
  -- Before the rest, which may make up for lost state of a key that is not used.
  local keys = wanted[7] and keys_of(now, policy_of(wanted[2]), wanted[7], wanted[8], wanted[9]) or {}
  local plan = recall(asked or wanted[5])
  local steps = steps_in_force(now, plan)
  local limits, decision, blocking = {}, false, nil
  for _, step in ipairs(steps) do
    if asked or not step.keyed then limits[#limits + 1] = described(now, step) end
  end
  if asked then
    decision = question(now, plan)
    if wanted[4] and decision then
      blocking = blocking_member(now, steps, decision[1] == 'W' and decision[3] or decision[1] == 'R' and decision[2])
    end
  end
  local leases = wanted[4] and holders(now, blocking) or {}
  return {'S', now, seq, head.paused > now and head.paused or 0, head.reason, head.tickets, limits, leases,
    head.overrides > 0 and listed(now) or {}, decision, wanted[6] and head.tickets > 0 and waiters(now) or {}, overdue, keys}
end

-- wanted: policy, ref of the ask or false, whether leases are wanted, ref of a plan that has all limits, whether
-- waiters are wanted, the limit of which keys are wanted or false, how many, and what they have in them. A look decides as
-- the next ask would, on a copy: nothing of it is kept.
function changes.p(now, wanted)
  policy_of(wanted[2])
  if made_line then made_line.finish() end
  local fine, reply = pcall(on_a_copy, look, now, wanted)
  if made_line then made_line.begin() end
  if not fine then error(reply, 0) end
  return reply
end

-- --- change.py --------------------------------------------------------------------------------------------------------

local function look_everywhere(now)
  if records.head.tickets > 0 then
    local due = space('due')
    for _, pair in ipairs(due:scan()) do due:put(pair[2], 1, now) end
    line_module().serve(now)
  end
end

-- wanted: member, value or false, for how long (0: until it is cleared), reason, whether its tightenings end instead
function changes.o(now, wanted)
  now = begin(now)
  local overrides, terms, member, value = space('overrides'), space('terms'), wanted[2], wanted[3]
  if wanted[6] then
    terms:delete('<' .. member)
  elseif value then
    local ends, reason = wanted[4] ~= 0 and now + wanted[4] or NEVER, wanted[5]
    overrides:put(member, value, 0)
    if ends < NEVER or reason ~= '' then
      terms:put('=' .. member, {ends, reason}, ends)
    else
      terms:delete('=' .. member)
    end
  else
    overrides:delete(member)
    terms:delete('=' .. member)
  end
  values_changed()
  look_everywhere(now)
  return 0
end

-- So many tightenings of one member are kept: see overrides.py.
local MOST_ROWS = 8

-- Have a value hold at most until `ends`. Returns whether a lower value is in force by it than by those before.
local function tighten(member, value, ends, reason)
  local terms, rows, place = space('terms'), {}, 1
  local before = terms:get('<' .. member) or {}
  for _, row in ipairs(before) do
    if row[1] <= value and row[2] >= ends then return false end
    if row[1] < value or row[2] > ends then rows[#rows + 1] = row end
    if row[1] < value then place = #rows + 1 end
  end
  table.insert(rows, place, {value, ends, reason})
  if #rows > MOST_ROWS then
    local near = 1
    for at = 2, MOST_ROWS do
      if rows[at + 1][1] - rows[at][1] < rows[near + 1][1] - rows[near][1] then near = at end
    end
    rows[near] = {rows[near][1], rows[near + 1][2], rows[near][3]}
    table.remove(rows, near + 1)
  end
  terms:put('<' .. member, rows, rows[1][2])
  return not before[1] or rows[1][1] < before[1][1]
end

-- wanted: member, value, configured value, for how long, reason
function changes.i(now, wanted)
  now = begin(now)
  lapse()
  local member, value, configured = wanted[2], wanted[3], wanted[4]
  if value < configured then
    local lower = tighten(member, value, now + wanted[5], wanted[6])
    count_overrides()
    if lower then
      values_changed()
      look_everywhere(now)
    end
  end
  local name, key = partition(member, '|')
  local found, rows = told_override(now, member, configured, NEVER, '', 0), listed(now)
  local function concerns(row) return row[1] == name and (not row[2] or row[2] == key) end
  for _, keyed in ipairs({false, true}) do -- the key's own value after the gate's: it takes its place
    for _, row in ipairs(rows) do
      if row[6] == 0 and concerns(row) and (row[2] and true or false) == keyed then found = row end
    end
  end
  for _, row in ipairs(rows) do
    if row[6] == 1 and concerns(row) and tonumber(row[3]) < tonumber(found[3]) then found = row end
  end
  return {'O', unpack(found)}
end

function changes.u(now, wanted)
  now = begin(now)
  if wanted[2] ~= 0 then
    pause(now + wanted[2], wanted[3])
  else
    records.head.paused, records.head.reason = 0, ''
  end
  look_everywhere(now)
  return 0
end

function changes.x(now, wanted)
  now = begin(now)
  local limit, head = wanted[2], records.head
  -- What calls hold would be forgotten too; the line simply calls again.
  if head.tickets > 0 then line_module().take_back(now) end
  for _, pair in ipairs(states:scan()) do
    local member = pair[2]
    if not limit or partition(partition(member, '|'), '@') == limit then
      drop('windows', member)
      drop('promised', member)
      drop('leases', member)
      states:delete(member)
    end
  end
  if not limit then
    head.paused, head.reason, head.lost = 0, '', 0
    drop('permits')
    drop('assumed')
  end
  look_everywhere(now)
  return 0
end
