-- Standing in line: tickets enter and leave their lanes, lanes get ready and are parked.

-- Put a new ticket at the end of its lane. Returns whether the line must be served: the ticket may be the first of a lane.
function line.stand(now, plan, id, session, holder, lease, remembered, attempt)
  local known = space('sessions'):get(session) ~= nil
  local woke = hear(now, session)
  local state = line_state()
  local timer_at, turns = state.timer_at, state.turns
  local rank = plan.rank
  local arrival = state.arrivals
  local ticket = {
    id = id, session = session, ref = plan.ref, lane = plan.lane, rank = rank, tier = rank, since = now,
    arrival = arrival, place = space('tickets'):len() + 1, weight = plan.weight, holder = holder or false,
    lease = lease, remembered = remembered, called = 0, hidden = 0, attempt = attempt,
  }
  state.arrivals = arrival + 1
  state.tiers = max(state.tiers, rank + 1)
  for tier = #turns + 1, state.tiers do turns[tier] = 0 end
  if rank > 0 or plan.lane ~= '' then state.plain = false end
  state_changed = true
  space('of', session):put(id, false, arrival)
  if rank > 0 then space('young'):put(id, false, now + plan.policy.patience) end
  local behind = _enter(ticket)
  _count()
  if woke or not (known and behind) or now >= timer_at then return true end
  -- Behind another ticket of its own lane, and of a process that stands in line already: no turn has changed. Its patience
  -- may end before the timer.
  return rank > 0 and now + plan.policy.patience < timer_at
end

-- The waiter asked again, from another process or by another attempt: the ticket is theirs now, in its old place.
function line.adopt(ticket, session, attempt)
  ticket.attempt = attempt
  if ticket.session == session then
    _write(ticket)
    return
  end
  local mine = space('of', ticket.session)
  mine:delete(ticket.id)
  if not mine:first() then
    drop('of', ticket.session)
    space('sessions'):delete(ticket.session)
  end
  ticket.session = session
  _write(ticket)
  space('of', session):put(ticket.id, false, ticket.arrival)
end

-- A ticket leaves for good: taken, cancelled, or its process died. What a call holds is given back.
function remove(now, ticket)
  if ticket.called ~= 0 then
    _take_off(now, ticket)
  elseif ticket.hidden == 0 then
    _leave(ticket)
    if ticket.lane ~= '' then freed(now, recall(ticket.ref).steps) end
  end
  _forget(ticket)
  _count()
end
line.remove = remove

-- Delete a ticket that stands in no lane and has no call, and with the last of its process the session.
function _forget(ticket)
  local tickets = space('tickets')
  tickets:len() -- before the ticket goes, while it is cached: after that it would have to be read
  tickets:delete(ticket.id)
  if ticket.tier > 0 then space('young'):delete(ticket.id) end
  local mine = space('of', ticket.session)
  mine:delete(ticket.id)
  if tickets.count == 0 or not mine:first() then
    drop('of', ticket.session)
    space('sessions'):delete(ticket.session)
  end
end

function _count()
  local tickets = space('tickets'):len()
  amend({tickets = tickets})
  if tickets == 0 then
    -- No ticket waits: whose turn it would have been says nothing any more.
    for tier = 0, line_state().tiers - 1 do drop('rest', tostring(tier)) end
    drop('line', '')
    drop('calls')
    state, state_changed = false, false
  end
end

-- Put a ticket into its lane. Returns whether the lane had others.
function _enter(ticket)
  _write(ticket)
  local lane = _lane_of(ticket)
  local queue = space('lane', lane)
  queue:put(ticket.id, false, ticket.arrival)
  local row = space('lanes'):get(lane)
  if not row then
    local rest = space('rest', tostring(ticket.tier))
    local tag = max(line_state().turns[ticket.tier + 1], rest:get(lane) or 0)
    rest:delete(lane)
    -- Of lanes that get ready at the same turn, the first to come goes first.
    _turn(ticket.tier, 0, INSTANT)
    _make_ready(lane, tag)
    return false
  end
  if row[2] ~= '' then
    if not space('due'):get(row[2]) then broken() end
    local _, first = queue:first()
    if first == ticket.id then
      -- The ticket came back to the front of a parked lane: look at that lane afresh.
      _unpark(lane, row)
    end
  end
  return true
end

-- Advance the virtual time of a tier: to `least` at least, and by so much more. Returns it.
function _turn(tier, least, by)
  local turns = line_state().turns
  turns[tier + 1] = max(turns[tier + 1], least) + by
  state_changed = true
  return turns[tier + 1]
end

-- Take a ticket out of its lane. The lane's turn does not move: nothing was taken.
function _leave(ticket)
  local lane = _lane_of(ticket)
  local queue = space('lane', lane)
  local _, first = queue:first()
  local was_first = first == ticket.id
  queue:delete(ticket.id)
  local row = space('lanes'):get(lane)
  if not queue:first() then
    _close(lane, ticket, row[1], row[2])
  elseif was_first and row[2] ~= '' then
    _unpark(lane, row)
  end
  local due = space('due')
  if row[2] ~= '' and due:get(row[2]) then
    due:put(row[2], 1, 0) -- lanes that are parked behind it are looked at by the serving that follows
  end
end

-- The first ticket of a ready lane was called: the lane's turn moves on by what the ticket takes.
local function _advance(lane, ticket)
  local queue = space('lane', lane)
  queue:delete(ticket.id)
  local tag = space('lanes'):get(lane)[1]
  -- Time also moves by what each waiting ticket has got in the mean: a ticket that comes later stands behind those that
  -- were here, however many come.
  local turn = _turn(ticket.tier, tag, ticket.weight / max(1, records.head.tickets))
  if not queue:first() then
    _close(lane, ticket, tag + ticket.weight, '', turn)
  else
    _make_ready(lane, tag + ticket.weight)
  end
  if line_state().plain then return end -- there is no other lane, and of this one nothing is left there
  local rest = space('rest', tostring(ticket.tier))
  local score, first = rest:first()
  while score and score <= turn do
    rest:delete(first)
    score, first = rest:first()
  end
end

function _close(lane, ticket, tag, parked, turn)
  if parked ~= '' then
    _drop_from('parked', parked, lane)
  elseif line_state().plain then
    drop('ready', _class_of(lane)) -- there is no other lane
  else
    _drop_from('ready', ticket.tier .. '.' .. ticket.rank, lane)
  end
  local lanes = space('lanes')
  if line_state().plain then lanes.count = lanes.count or 1 else lanes:len() end -- as in `_forget`
  lanes:delete(lane)
  drop('lane', lane)
  -- A lane that comes back soon goes on where it was: leaving and coming again is no way to the front.
  if turn and tag <= turn then return end -- that turn has come already
  space('rest', tostring(ticket.tier)):put(lane, tag, tag)
end

function _drop_from(kind, name, lane)
  local from = space(kind, name)
  from:delete(lane)
  if not from:first() then
    drop(kind, name)
    if kind == 'parked' then space('due'):delete(name) end
  end
end

function _make_ready(lane, tag)
  space('lanes'):set(lane, {tag, ''})
  space('ready', _class_of(lane)):put(lane, false, tag)
end

local function _park(lane, member, until_)
  local lanes = space('lanes')
  local tag = lanes:get(lane)[1]
  _drop_from('ready', _class_of(lane), lane)
  lanes:set(lane, {tag, member})
  local parked = space('parked', member)
  parked:put(lane, false, _order(lane, tag))
  local due = space('due')
  local _, first = parked:first()
  -- The first lane is waited for; the one behind it is looked at when that has gone.
  if not due:get(member) or first == lane then due:put(member, 1, until_) end
end

function _unpark(lane, row)
  _drop_from('parked', row[2], lane)
  _make_ready(lane, row[1])
end

-- Something came back on these limits: lanes that are parked at one of them are looked at again.
function freed(now, steps)
  local due = space('due')
  for _, step in ipairs(steps) do
    if step.keyed and due:get(step.member) then -- every member at which a lane is parked is due at some time
      due:put(step.member, 1, now)
    end
  end
end
line.freed = freed

-- Whether taking a call changes no turn, so that the line need not be served.
function line.is_certain(now, plan, call_ends)
  local timer_at = line_state().timer_at
  return plan.lease == 0 and plan.lane == '' and now < timer_at and timer_at < call_ends
end

-- Whether a confirmation changes no turn yet: what it gives back comes free `per` from now at the soonest, and the ticket
-- that keeps the timer has the line served before that.
function line.is_early(now, plan)
  local timer_at = line_state().timer_at
  return plan.lane == '' and now < timer_at and timer_at <= now + plan.soonest
end
