-- The order of waiting asks: the port of line.py, function by function, with the same names and the same order of
-- arithmetic. What the spaces are, and why the order is what it is, is said at the head of line.py.
--
-- Most calls of the script have nobody in line. Making a closure costs more than a decision does, so all functions are
-- made together, when `line_module()` is first called; whoever sees a ticket, or asks for one, calls it. A library keeps them.

local made_line = false

local function line_module()
  if made_line then return made_line end
  local line = {}
  made_line = line

  -- A process that was not heard of for this long is dead.
  local SESSION = 10 * SECOND
  -- What a tier is worth in the order of parked lanes: more than any tag.
  local TIER = 2 ^ 40
  -- A step of virtual time that is too short to matter, and long enough to tell before from after.
  local INSTANT = 2 ^ -40
  -- Why a ticket stands in no lane: another ticket of its process missed a call, or it missed its own.
  local ASLEEP, MISSED = 1, 2
  line.ASLEEP, line.MISSED = ASLEEP, MISSED
  -- What is known of a process: it may be there; it is asleep; somebody was listening when it was last told something.
  local THERE, SLEEPS, LISTENS = 0, 1, 2

  -- Keys of the line are gone: what is left of it is of no use (see `reply_to` in main.lua).
  local function broken()
    error('attempt to serve a line of which keys are gone')
  end

  local _enter, _leave, _forget, _make_ready, _unpark, _drop_from, _close, _turn, _count, _ahead, freed, remove, _take_off

  -- A Meta and a Ticket are arrays where they are stored, in the order of line.py, and have names here. A Meta has one more:
  -- `plain` while nobody has come with a class or a key, so that nobody is `young`, and nobody parked until anything is `due`.

  local meta, meta_changed = false, false

  -- A call begins.
  function line.begin()
    meta, meta_changed = false, false
  end

  -- One get and one write for a whole batch: `finish` is called when the batch is done. Whoever changes it says so.
  local function meta_of()
    if not meta then
      local found = space('line'):get('meta')
      if found then
        meta = {
          arrivals = found[1], tiers = found[2], timer = found[3], timer_at = found[4], blocked = found[5],
          turns = found[6], limit = found[7], free_at = found[8], plain = found[9] or false,
        }
      else
        meta = {arrivals = 0, tiers = 1, timer = '', timer_at = NEVER, blocked = {}, turns = {0}, limit = '', free_at = 0,
          plain = records.head.tickets == 0}
      end
    end
    return meta
  end
  line.meta_of = meta_of

  function line.finish()
    if meta_changed then
      meta_changed = false
      space('line'):set('meta', {
        meta.arrivals, meta.tiers, meta.timer, meta.timer_at, meta.blocked, meta.turns, meta.limit, meta.free_at,
        meta.plain,
      })
    end
  end

  local function find(id)
    local row = id and space('tickets'):get(id)
    if not row then return nil end
    return {
      id = row[1], session = row[2], ref = row[3], lane = row[4], rank = row[5], tier = row[6], since = row[7],
      arrival = row[8], place = row[9], weight = row[10], holder = row[11], lease = row[12], remembered = row[13],
      called = row[14], hidden = row[15],
    }
  end
  line.find = find

  -- Of these tickets, those whose waiters should come: they were called or missed a call; and those that are gone.
  function line.look_up(ids, called, unknown)
    local tickets = space('tickets')
    for _, id in ipairs(ids) do
      local row = tickets:get(id)
      if not row then
        unknown[#unknown + 1] = id
      elseif row[14] ~= 0 or row[15] == MISSED then
        called[#called + 1] = id
      end
    end
  end

  local function _write(ticket)
    space('tickets'):set(ticket.id, {
      ticket.id, ticket.session, ticket.ref, ticket.lane, ticket.rank, ticket.tier, ticket.since, ticket.arrival,
      ticket.place, ticket.weight, ticket.holder, ticket.lease, ticket.remembered, ticket.called, ticket.hidden,
    })
  end

  local function _lane_of(ticket)
    return ticket.tier .. '.' .. ticket.rank .. '.' .. ticket.lane
  end

  local function _class_of(lane)
    return string.match(lane, '^%d+%.%d+')
  end

  local function _tier_of(lane)
    return tonumber(string.match(lane, '^%d+'))
  end

  -- Where a lane stands among those parked at the same member.
  local function _order(lane, tag)
    return _tier_of(lane) * TIER + tag
  end

  -- Whether a new ask would stand behind somebody who waits.
  function line.is_behind(plan)
    local rank = plan.rank
    for _, from in ipairs(meta_of().blocked) do
      if rank >= from[1] and rank >= from[2] then return true end
    end
    if space('lanes'):get(rank .. '.' .. rank .. '.' .. plan.lane) then return true end
    return _ahead(plan.steps, (rank + 1) * TIER) ~= nil
  end

  -- The member of these steps at which somebody who goes before `order` is parked, if there is one.
  function _ahead(steps, order)
    local due = space('due')
    for _, step in ipairs(steps) do
      if step.keyed and due:get(step.member) then -- every member at which somebody is parked is due at some time
        local score = space('parked', step.member):first()
        if score and score < order then return step.member end
      end
    end
    return nil
  end

  -- --- sessions ------------------------------------------------------------------------------------------------------

  -- All tickets of a process, which are read in one go.
  local function _tickets_of(session)
    local found = space('of', session):scan()
    space('tickets'):prefetch_pairs(found)
    return found
  end

  -- A process was heard of. Returns whether it had been asleep: then its tickets stand in line again.
  -- A ticket that missed its call comes back only when its waiter itself was heard of (`own`).
  local function hear(now, session, own)
    local sessions = space('sessions')
    local was = sessions:get(session)
    local asleep = was == SLEEPS
    sessions:put(session, was == LISTENS and LISTENS or THERE, now + SESSION)
    if asleep then
      for _, pair in ipairs(_tickets_of(session)) do
        local ticket = find(pair[2])
        if ticket.hidden == ASLEEP then
          ticket.hidden = 0
          _enter(ticket)
        end
      end
    end
    if own and space('tickets'):get(own)[15] ~= 0 then
      local ticket = find(own)
      ticket.hidden = 0
      _enter(ticket)
      return true
    end
    return asleep
  end
  line.hear = hear

  local function _put_to_sleep(session)
    local sessions = space('sessions')
    local was = sessions:get(session)
    if not was or was == SLEEPS then return end
    sessions:set(session, SLEEPS)
    for _, pair in ipairs(_tickets_of(session)) do
      local ticket = find(pair[2])
      if ticket.called == 0 and ticket.hidden == 0 then
        _leave(ticket)
        ticket.hidden = ASLEEP
        _write(ticket)
      end
    end
  end

  -- --- standing in line ----------------------------------------------------------------------------------------------

  -- A new ticket at the end of its lane. Returns whether the line must be served: it may be the first of somebody.
  function line.stand(now, plan, id, session, holder, lease, remembered)
    local known = space('sessions'):get(session) ~= nil
    local woke = hear(now, session)
    local meta = meta_of()
    local timer_at, turns = meta.timer_at, meta.turns
    local rank = plan.rank
    local arrival = meta.arrivals
    local ticket = {
      id = id, session = session, ref = plan.ref, lane = plan.lane, rank = rank, tier = rank, since = now,
      arrival = arrival, place = space('tickets'):len() + 1, weight = plan.weight, holder = holder or false,
      lease = lease, remembered = remembered, called = 0, hidden = 0,
    }
    meta.arrivals = arrival + 1
    meta.tiers = max(meta.tiers, rank + 1)
    for tier = #turns + 1, meta.tiers do turns[tier] = 0 end
    if rank > 0 or plan.lane ~= '' then meta.plain = false end
    meta_changed = true
    space('of', session):put(id, false, arrival)
    if rank > 0 then space('young'):put(id, false, now + plan.policy.patience) end
    local behind = _enter(ticket)
    _count()
    if woke or not (known and behind) or now >= timer_at then return true end
    -- Behind another of its own lane, of a process that stands in line already: nobody's turn has changed. Its patience
    -- may end before anybody looks.
    return rank > 0 and now + plan.policy.patience < timer_at
  end

  -- Its waiter came again in another process, under the same id: the ticket is that process's now, in its old place.
  function line.adopt(ticket, session)
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

  -- A ticket that stands in no lane and has no call is no more, and with the last of its process that.
  function _forget(ticket)
    local tickets = space('tickets')
    tickets:len() -- before one goes that is known to be there: after that it would have to be looked at
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
      -- Nobody waits: whose turn it would have been says nothing any more.
      for tier = 0, meta_of().tiers - 1 do drop('rest', tostring(tier)) end
      drop('line', '')
      drop('calls')
      meta, meta_changed = false, false
    end
  end

  -- Into its lane. Returns whether others of that lane were there.
  function _enter(ticket)
    _write(ticket)
    local lane = _lane_of(ticket)
    local queue = space('lane', lane)
    queue:put(ticket.id, false, ticket.arrival)
    local row = space('lanes'):get(lane)
    if not row then
      local rest = space('rest', tostring(ticket.tier))
      local tag = max(meta_of().turns[ticket.tier + 1], rest:get(lane) or 0)
      rest:delete(lane)
      -- Of lanes that come at the same turn, the first to come goes first.
      _turn(ticket.tier, 0, INSTANT)
      _make_ready(lane, tag)
      return false
    end
    if row[2] ~= '' then
      if not space('due'):get(row[2]) then broken() end
      local _, first = queue:first()
      if first == ticket.id then
        -- It came back to the front of a parked lane: look at it afresh.
        _unpark(lane, row)
      end
    end
    return true
  end

  -- The virtual time of a tier moves on: to `least` at least, and by so much more. Returns it.
  function _turn(tier, least, by)
    local turns = meta_of().turns
    turns[tier + 1] = max(turns[tier + 1], least) + by
    meta_changed = true
    return turns[tier + 1]
  end

  -- Out of its lane. The lane's turn does not move: nothing was taken.
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
      due:put(row[2], 1, 0) -- whoever was parked behind it looks again, at the serving that follows
    end
  end

  -- The first of a ready lane was called: its lane's turn moves on by what the ticket takes.
  local function _advance(lane, ticket)
    local queue = space('lane', lane)
    queue:delete(ticket.id)
    local tag = space('lanes'):get(lane)[1]
    -- Time also moves by what each of those who wait has got in the mean: whoever comes later stands behind those who
    -- were here, however many come.
    local turn = _turn(ticket.tier, tag, ticket.weight / max(1, records.head.tickets))
    if not queue:first() then
      _close(lane, ticket, tag + ticket.weight, '', turn)
    else
      _make_ready(lane, tag + ticket.weight)
    end
    if meta_of().plain then return end -- there is no other lane, and of this one nothing is left there
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
    elseif meta_of().plain then
      drop('ready', _class_of(lane)) -- there is no other lane
    else
      _drop_from('ready', ticket.tier .. '.' .. ticket.rank, lane)
    end
    local lanes = space('lanes')
    if meta_of().plain then lanes.count = lanes.count or 1 else lanes:len() end -- as in `_forget`
    lanes:delete(lane)
    drop('lane', lane)
    -- Who comes back soon goes on where it was: leaving and coming again is no way to the front.
    if turn and tag <= turn then return end -- it has come to that already
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
    -- The first is waited for; whoever is behind it looks when that one has gone.
    if not due:get(member) or first == lane then due:put(member, 1, until_) end
  end

  function _unpark(lane, row)
    _drop_from('parked', row[2], lane)
    _make_ready(lane, row[1])
  end

  -- Something came back on these limits: whoever is parked at one of them may look again.
  function freed(now, steps)
    local due = space('due')
    for _, step in ipairs(steps) do
      if step.keyed and due:get(step.member) then -- every member at which somebody is parked is due at some time
        due:put(step.member, 1, now)
      end
    end
  end
  line.freed = freed

  -- Whether taking a call changes nobody's turn, so that the line need not be served.
  function line.is_certain(now, plan, call_ends)
    local timer_at = meta_of().timer_at
    return plan.lease == 0 and plan.lane == '' and now < timer_at and timer_at < call_ends
  end

  -- Whether a confirmation changes nobody's turn yet: what it gives back comes free `per` from now at the soonest, and
  -- whoever keeps the timer looks before that.
  function line.is_early(now, plan)
    local timer_at = meta_of().timer_at
    return plan.lane == '' and now < timer_at and timer_at <= now + plan.soonest
  end

  -- --- serving -------------------------------------------------------------------------------------------------------

  -- A call ends: what it holds is free again.
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

  -- All calls are taken back: their tickets stand in line again, in their old places.
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

  -- Of every member that may have room now, the first parked lane gets ready; the next follows when that is called.
  -- Returns the highest tier that has got one, whose turn it is then.
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
          -- It is looked at again when this one is called or leaves; and at last by itself.
          due:put(member, 1, now + SECOND)
        end
      else
        broken()
      end
      score, member = due:first()
    end
    return tier
  end

  -- The one lane of those who have neither a class nor a key.
  local PLAIN = '0.0.'

  local function _next_lane(tier, tiers, blocked)
    if meta_of().plain then return not blocked[1] and space('lanes'):get(PLAIN) and PLAIN or nil end
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

  -- The processes that have a call to take (a few of them will do).
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

  -- Some ticket that stands in a lane, to keep the timer.
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
  local function _keep_timer(now, waits, blocked, clocks)
    local meta = meta_of()
    local at = NEVER
    for _, wait in ipairs(waits) do at = min(at, wait[1]) end
    for _, kind in ipairs(meta.plain and CLOCKS_OF_PLAIN or clocks) do at = min(at, (space(kind):first()) or NEVER) end
    local first = waits[1]
    local holder = first and first[3]
    if holder then
      local busy_sessions = _with_calls_out()
      if busy_sessions[holder.session] then
        -- Its process has a call to take, and may be dead: somebody of another one had better look after the time.
        holder = _any_waiting(busy_sessions) or holder
      end
    end
    local timer = holder and holder.id or ''
    if holder and (timer ~= meta.timer or at < meta.timer_at) then
      records.wakes[#records.wakes + 1] = {holder.session, holder.id, max(0, at - now)}
    end
    meta.timer, meta.timer_at, meta.blocked = timer, at, blocked
    if first then
      meta.limit, meta.free_at = first[2], first[1]
    else
      meta.limit, meta.free_at = '', now
    end
    meta_changed = true
  end

  local function _call_all(now, asker)
    local due = space('due')
    local blocked, waits, looked = {}, {}, {}
    local tiers, plain, overridden = meta_of().tiers, meta_of().plain, records.head.overrides > 0
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
        if overridden and too_large(plan, steps) then
          -- An override has made it impossible. Its waiter asks again, and is told so.
          remove(now, ticket)
          records.wakes[#records.wakes + 1] = {ticket.session, ticket.id, false}
        else
          local member = nil
          if ticket.lane ~= '' then member = _ahead(steps, _order(lane, space('lanes'):get(lane)[1])) end
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
              due:put(came_from, 1, now) -- it made no use of the room there: the next may
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
    -- Somebody stands in a lane, and in no order.
    if not waits[1] and space('lanes'):len() > 0 then broken() end
    _keep_timer(now, waits, blocked, CLOCKS)
  end

  -- How many there were to hear what a process was told. Where somebody was before and nobody is now, it is dead or cut
  -- off: its calls are taken back at once, and it is skipped until it is heard of again. Returns whether it is so.
  function line.told(now, session, listeners)
    local sessions = space('sessions')
    local was = sessions:get(session)
    if listeners > 0 then
      if was == THERE then sessions:set(session, LISTENS) end
      return false
    end
    if was ~= LISTENS then return false end -- its connection may be about to be made, or be with another of a cluster
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

  -- Do all that is due: give back calls, bury sessions, end patience, call whoever fits, and say who keeps the timer.
  -- An asker is here: when its ticket is the one to be called, it takes what it asks for instead.
  function line.serve(now, asker)
    local calls = space('calls')
    local score, first = calls:first()
    while score and score <= now do
      _give_back(now, first)
      score, first = calls:first()
    end
    local sessions = space('sessions')
    score, first = sessions:first()
    while score and score <= now do
      for _, pair in ipairs(_tickets_of(first)) do remove(now, find(pair[2])) end
      sessions:delete(first)
      score, first = sessions:first()
    end
    if not meta_of().plain then
      local young = space('young')
      score, first = young:first()
      while score and score <= now do
        _promote(first)
        score, first = young:first()
      end
    end
    local paused = records.head.paused
    if paused > now then
      _keep_timer(now, {{ paused, '', _any_waiting({}) or false} }, {}, CLOCKS_IN_A_PAUSE)
      return
    end
    _call_all(now, asker)
    if asker and asker.has_taken then _count() end
  end

  return line
end
