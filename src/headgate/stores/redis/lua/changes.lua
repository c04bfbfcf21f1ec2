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

local function waiters()
  local found, rows = {}, {}
  for _, session in ipairs(space('sessions'):scan()) do
    for _, pair in ipairs(space('of', session[2]):scan(nil, WAITERS)) do found[#found + 1] = pair end
  end
  table.sort(found, is_before)
  for at = WAITERS + 1, #found do found[at] = nil end
  space('tickets'):prefetch_pairs(found)
  for at, pair in ipairs(found) do
    local ticket = line_module().find(pair[2])
    local ref = unpacked(ticket.ref)
    rows[at] = {ticket.id, ticket.holder, ref[4], ticket.since, ticket.rank}
  end
  return rows
end

-- wanted: policy, ref of the ask or false, whether leases are wanted, ref of a plan that has all limits, whether
-- waiters are wanted.
function changes.p(now, wanted)
  local head = records.head
  if now < head.now then now = head.now end
  local policy = policy_of(wanted[2])
  local limits, decision, blocking = {}, false, nil
  if wanted[3] then
    local plan = recall(wanted[3])
    local steps = head.overrides > 0 and current(plan) or plan.steps
    for index, step in ipairs(steps) do limits[index] = described(now, step) end
    local excessive = too_large(plan, steps)
    local at, step = now, nil
    if excessive then -- what never fits has no earliest moment, and looking for it would take as long
      at = now
    elseif policy.waiting == 'promise' then -- on its grid; in a line the answer is exact, as in `admit`
      at, step = earliest(now, steps, now)
    else
      at, step = earliest_now(now, steps)
    end
    if excessive then
      decision = refusal_of(excessive.base, too_large_text(excessive, plan), NEVER, now)
    elseif head.paused > now and head.paused >= at then
      decision = wait_of(head.paused, nil, head.tickets + 1, nil, now, 'paused')
    elseif at > now then
      decision = wait_of(at, step.base, head.tickets + 1, nil, now)
      blocking = step.member
    elseif head.tickets > 0 and line_module().is_behind(plan) then
      local state = line_module().line_state()
      decision =
        wait_of(max(now + 1, state.free_at), state.limit ~= '' and state.limit, head.tickets + 1, nil, now, 'line')
    end
  else
    local plan = recall(wanted[5])
    for _, step in ipairs(head.overrides > 0 and current(plan) or plan.steps) do
      if not step.keyed then limits[#limits + 1] = described(now, step) end
    end
  end
  local overrides = {}
  if head.overrides > 0 then
    local listed = space('overrides')
    for index, pair in ipairs(listed:scan()) do
      local name, key = partition(pair[2], '|')
      overrides[index] = {name, key ~= '' and key or false, exact(listed:get(pair[2]))}
    end
  end
  local leases = wanted[4] and holders(now, blocking) or {}
  local due_at = head.tickets > 0 and line_module().line_state().timer_at or NEVER
  local overdue = due_at <= now and due_at or 0
  return {'S', now, head.seq, head.paused > now and head.paused or 0, head.reason, head.tickets, limits, leases,
    overrides, decision, wanted[6] and head.tickets > 0 and waiters() or {}, overdue}
end

-- --- change.py --------------------------------------------------------------------------------------------------------

local function look_everywhere(now)
  if records.head.tickets > 0 then
    local due = space('due')
    for _, pair in ipairs(due:scan()) do due:put(pair[2], 1, now) end
    line_module().serve(now)
  end
end

function changes.o(now, wanted)
  now = begin(now)
  local overrides, member, value = space('overrides'), wanted[2], wanted[3]
  if value then
    overrides:put(member, value, 0)
  else
    overrides:delete(member)
  end
  records.head.overrides = overrides:len()
  -- What is known of where nothing fits was known for the old value.
  for _, kind in ipairs({'windows', 'promised'}) do
    for _, name in ipairs(names(kind)) do space(kind, name):delete('hint') end
  end
  look_everywhere(now)
  return 0
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
