-- Serving the line: tickets that fit are called, and calls that were not taken are given back.

-- End a call: what it holds is free again.
function _take_off(now, ticket)
  local steps = recall(ticket.ref).steps
  let_go(now, steps, {ticket.id, 0, false})
  if ticket.lane ~= '' then freed(now, steps) end
  space('calls'):delete(ticket.id)
end

local function _give_back(now, id)
  local ticket = find(id)
  _take_off(now, ticket)
  _put_to_sleep(ticket.session)
  ticket.called, ticket.hidden = 0, MISSED
  _write(ticket)
end

-- Take back all calls: their tickets stand in line again, in their old places.
function line.take_back(now)
  for _, pair in ipairs(space('calls'):scan()) do
    local ticket = find(pair[2])
    let_go(now, recall(ticket.ref).steps, {ticket.id, 0, false})
    space('calls'):delete(ticket.id)
    ticket.called = 0
    _enter(ticket)
  end
end

local function _promote(id)
  local ticket = find(id)
  space('young'):delete(id)
  if ticket.called ~= 0 or ticket.hidden ~= 0 then
    ticket.tier = 0
    _write(ticket)
    return
  end
  _leave(ticket)
  ticket.tier = 0
  _enter(ticket)
end

-- At every member that may have room now, make the first parked lane ready; the next follows when that is called.
-- Returns the highest tier that has got such a lane: serving goes on from there.
local function _look_again(now, due, looked)
  local tier = NEVER
  local score, member = due:first()
  while score and score <= now do
    local parked = space('parked', member)
    local _, lane = parked:first()
    due:delete(member)
    if lane then
      _unpark(lane, space('lanes'):get(lane))
      looked[lane] = looked[lane] or member
      tier = min(tier, _tier_of(lane))
      if space('parked', member):first() then
        -- The next is looked at when this one is called or leaves, and otherwise after a second.
        due:put(member, 1, now + SECOND)
      end
    else
      broken()
    end
    score, member = due:first()
  end
  return tier
end

-- The one lane of tickets that have neither a class nor a key.
local PLAIN = '0.0.'

local function _next_lane(tier, tiers, blocked)
  if line_state().plain then return not blocked[1] and space('lanes'):get(PLAIN) and PLAIN or nil end
  local lowest, highest = tier, tier
  if tier == 0 then highest = tiers - 1 end
  local behind, best = NEVER, nil
  for _, from in ipairs(blocked) do behind = min(behind, from[2]) end
  for rank = lowest, highest do
    if rank >= behind then break end
    local score, lane = space('ready', tier .. '.' .. rank):first()
    if score and (not best or is_before({score, lane}, best)) then best = {score, lane} end
  end
  return best and best[2]
end

local function _call(now, lane, ticket, steps, claim)
  hold(now, steps, {ticket.id, now + claim, {ticket.ref, now, 0, ticket.holder}})
  _advance(lane, ticket)
  ticket.called = now + claim
  _write(ticket)
  space('calls'):put(ticket.id, false, now + claim)
  records.wakes[#records.wakes + 1] = {ticket.session, ticket.id, false}
end

-- The sessions of called tickets (a few of them will do).
local function _with_calls_out()
  local sessions = {}
  for _, pair in ipairs(space('calls'):scan(nil, 8)) do sessions[find(pair[2]).session] = true end
  return sessions
end

-- The first in the order of a space for which `found` has an answer. Mostly one of the first few has one, and there may
-- be ten thousand.
local function _first_of(from, found)
  local few = from:scan(nil, 16)
  for _, pair in ipairs(few) do
    local answer = found(pair[2])
    if answer then return answer end
  end
  if #few == 16 then
    local all = from:scan()
    for at = 17, #all do
      local answer = found(all[at][2])
      if answer then return answer end
    end
  end
  return nil
end

-- Any ticket that stands in a lane, to keep the timer.
local function _any_waiting(but_not)
  local sessions = space('sessions')
  local function waiting(id)
    local ticket = find(id)
    return ticket.called == 0 and ticket.hidden == 0 and ticket
  end
  return _first_of(sessions, function(session)
    return sessions:get(session) ~= SLEEPS and not but_not[session] and _first_of(space('of', session), waiting)
  end)
end

local CLOCKS, CLOCKS_IN_A_PAUSE = {'calls', 'due', 'sessions', 'young'}, {'calls', 'sessions', 'young'}
local CLOCKS_OF_PLAIN = {'calls', 'sessions'}

-- The first in order keeps the timer: for its own moment, and for all that happens by itself before.
local function _keep_timer(now, waits, blocked, clocks, terms_run)
  local state = line_state()
  local at = NEVER
  for _, wait in ipairs(waits) do at = min(at, wait[1]) end
  for _, kind in ipairs(state.plain and CLOCKS_OF_PLAIN or clocks) do at = min(at, (space(kind):first()) or NEVER) end
  if terms_run then at = min(at, (space('terms'):first()) or NEVER) end
  local first = waits[1]
  local holder = first and first[3]
  if holder then
    local busy_sessions = _with_calls_out()
    if busy_sessions[holder.session] then
      -- Its process has a call to take, and may be dead: a ticket of another process had better keep the timer.
      holder = _any_waiting(busy_sessions) or holder
    end
  end
  local timer = holder and holder.id or ''
  if holder and (timer ~= state.timer or at < state.timer_at) then
    records.wakes[#records.wakes + 1] = {holder.session, holder.id, max(0, at - now)}
  end
  state.timer, state.timer_at, state.blocked = timer, at, blocked
  if first then
    state.limit, state.free_at = first[2], first[1]
  else
    state.limit, state.free_at = '', now
  end
  state_changed = true
end

-- A ticket that has become impossible leaves the line. Its waiter asks again, and is told why; no other command is.
local function _send_away(now, ticket)
  remove(now, ticket)
  records.wakes[#records.wakes + 1] = {ticket.session, ticket.id, false}
end

local function any_of_another_kind(steps)
  for index = 1, #steps do
    if is_another_kind(steps[index]) then return true end
  end
  return false
end

local function _call_all(now, asker)
  local due = space('due')
  local blocked, waits, looked = {}, {}, {}
  local tiers, plain, overridden = line_state().tiers, line_state().plain, records.head.overrides > 0
  local tier = 0
  while tier < tiers do
    local back = plain and NEVER or _look_again(now, due, looked)
    if back < tier then
      tier = back
      while blocked[1] and blocked[#blocked][1] >= tier do -- they are found again, if they have to wait again
        blocked[#blocked], waits[#waits] = nil, nil
      end
    end
    local lane = _next_lane(tier, tiers, blocked)
    if lane then
      local _, id = space('lane', lane):first()
      local ticket = find(id)
      local plan = recall(ticket.ref)
      local steps = overridden and current(plan) or plan.steps
      local member = nil
      if ticket.lane ~= '' then member = _ahead(steps, _order(lane, space('lanes'):get(lane)[1])) end
      if overridden and too_large(plan, steps) then
        _send_away(now, ticket) -- an override has made it impossible
      elseif not member and any_of_another_kind(steps) then
        _send_away(now, ticket) -- since it came: a reset, or a ticket of the other kind was called first
      else
        local at, step = now + 1, nil
        if not member then at, step = blocked_by(now, steps) end
        if at <= now then
          if asker and ticket.id == asker.id then
            asker.take(steps)
            _advance(lane, ticket)
            _forget(ticket)
          else
            _call(now, lane, ticket, steps, plan.policy.claim)
          end
          if ticket.lane ~= '' then freed(now, steps) end
        elseif member or step.keyed then
          member = member or step.member
          _park(lane, member, at)
          local came_from = looked[lane] or member
          looked[lane] = nil
          if came_from ~= member and due:get(came_from) then
            due:put(came_from, 1, now) -- it made no use of the room there: the next lane may
          end
        else
          blocked[#blocked + 1] = {tier, max(0, step.rank)}
          waits[#waits + 1] = {at, step.base, ticket}
        end
      end
    else
      tier = tier + 1
    end
  end
  local score, member
  if not plain then score, member = due:first() end
  if score and not waits[1] then
    local _, lane = space('parked', member):first()
    local _, id = space('lane', lane):first()
    waits[1] = {score, string.match(member, '^[^|@]*'), find(id)}
  end
  -- There is a lane that is neither ready nor parked.
  if not waits[1] and space('lanes'):len() > 0 then broken() end
  _keep_timer(now, waits, blocked, CLOCKS, overridden)
end

-- A message to a process had so many subscribers. Where it had one before and has none now, the process is dead or cut off:
-- its calls are taken back at once, and it is skipped until it is heard of again. Returns whether it is so.
function line.published(now, session, subscribers)
  local sessions = space('sessions')
  local was = sessions:get(session)
  if subscribers > 0 then
    if was == THERE then sessions:set(session, LISTENS) end
    return false
  end
  if was ~= LISTENS then return false end -- it may be about to subscribe, or subscribed at another server of a cluster
  _put_to_sleep(session)
  for _, pair in ipairs(_tickets_of(session)) do
    local ticket = find(pair[2])
    if ticket.called ~= 0 then
      _take_off(now, ticket)
      ticket.called, ticket.hidden = 0, ASLEEP
      _write(ticket)
    end
  end
  return true
end

-- How many tickets of dead processes leave in one serving: a crowd of them holds up no other command for long.
local BURIED = 512

-- Tickets of processes that were not heard of leave, so many at a time. Returns whether none of them is left.
local function _bury(now)
  local sessions, left = space('sessions'), BURIED
  local score, session = sessions:first()
  while score and score <= now do
    local found = space('of', session):scan(nil, left + 1)
    space('tickets'):prefetch_pairs(found)
    for at = 1, min(left, #found) do remove(now, find(found[at][2])) end
    if #found > left then
      sessions:set(session, SLEEPS) -- none of its tickets is to keep the timer
      return false
    end
    sessions:delete(session)
    left = left - #found
    if found[1] then
      -- Should it live after all, it learns so.
      records.wakes[#records.wakes + 1] = {session, found[#found][2], false}
    end
    score, session = sessions:first()
  end
  return true
end

-- Do all that is due: give back calls that were not taken, remove dead sessions, end patience, call the tickets that
-- fit, and choose the ticket that keeps the timer. `asker` is the command that is being decided: when its own ticket is
-- the one to be called, it takes what it asks for instead.
function line.serve(now, asker)
  local calls = space('calls')
  local score, first = calls:first()
  while score and score <= now do
    _give_back(now, first)
    score, first = calls:first()
  end
  if not _bury(now) then
    -- No ticket is called while dead ones may be among the first. The next command goes on, and the timer has one come.
    _keep_timer(now, {{now, '', _any_waiting({}) or false}}, {{0, 0}}, {'sessions'})
    return
  end
  if not line_state().plain then
    local young = space('young')
    score, first = young:first()
    while score and score <= now do
      _promote(first)
      score, first = young:first()
    end
  end
  if records.head.overrides > 0 then lapse() end
  local paused = records.head.paused
  if paused > now then
    _keep_timer(now, {{ paused, '', _any_waiting({}) or false} }, {}, CLOCKS_IN_A_PAUSE)
    return
  end
  _call_all(now, asker)
  if asker and asker.has_taken then _count() end
end
