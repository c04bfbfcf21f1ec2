-- Asks: the port of commands/admit.py.

local function grant(now, ask, plan, steps, at, id, holder, attempt)
  if ask.looks then return false end -- see changes.p: nothing is charged
  local head = records.head
  local expires = ask.lease ~= 0 and now + ask.lease or 0
  local seq = head.seq
  local worth = charge(now, steps, at, expires ~= 0 and {id, expires, {plan.ref, now, seq, holder}} or NO_LEASE)
  if expires ~= 0 or ask.remembered then remember(plan.policy) end
  if ask.remembered then
    local ends, row = expires ~= 0 and expires or at, {plan.ref, at, 0, seq, expires ~= 0, false, worth}
    row[3] = ends
    if attempt ~= '' then
      bury_attempts(id)
      row[8], row[9] = 0, attempt
    end
    permits:put(id, row, ends + REMEMBER)
  end
  -- Of a promise there is no lease: the time of the decision stands in its place.
  return granted(at, plan.policy.waiting == 'promise' and now or expires, seq, worth, 1)
end

local function again(now, plan, id, known, attempt)
  if not same(known[1], plan.ref) then return {'E', 'IdConflict'} end
  if attempt ~= '' or (known[9] or '') ~= '' then join(now, id, known, attempt) end
  if plan.policy.waiting == 'promise' then return {known[10] or known[2], now, known[4], known[7] and 1 or 0, 1} end
  return {known[2], known[5] and known[3] or 0, known[4], known[7] and 1 or 0, 1}
end

-- What is to be answered without deciding anything: the permit that lives under the id, or that it is over.
local function known_reply(now, plan, id, attempt)
  if attempt ~= '' and is_buried(name_of(id, attempt), now) then return {'E', 'AttemptOver'} end
  local known = permits:get(id)
  if not known then return nil end
  if known[3] + REMEMBER <= now then
    permits:delete(id) -- forgotten, and only not yet reaped
    return nil
  end
  if permit_lives(known, now) then return again(now, plan, id, known, attempt) end
  return (attempt == '' or among(known[9] or '', attempt)) and {'E', 'AttemptOver'} or nil
end

-- The waiter of this ticket learns from the reply what it would be woken for.
local function drop_own_wakes(id)
  local wakes = records.wakes
  if #wakes == 0 then return end
  local kept = {}
  for _, wake in ipairs(wakes) do
    if wake[2] ~= id then kept[#kept + 1] = wake end
  end
  records.wakes = kept
end

local function ticket_reply(now, ask, plan, id, holder, attempt, ticket)
  local line = line_module()
  if not same(ticket.ref, plan.ref) then return {'E', 'IdConflict'} end
  if ticket.called ~= 0 then
    -- Taking a call: what was held goes, and the charge is stamped now.
    local call_ends = ticket.called
    local steps = steps_in_force(now, plan)
    check_kinds(steps) -- another version of the configuration may ask now than stood in line
    line.remove(now, ticket)
    local reply = grant(now, ask, plan, steps, now, id, holder, attempt)
    if records.head.tickets > 0 and not line.is_certain(now, plan, call_ends) then line.serve(now) end
    drop_own_wakes(id)
    return reply
  end
  local state, head = line.line_state(), records.head
  local check_at = false
  if state.timer == id then
    check_at = state.timer_at
    drop_own_wakes(id)
  end
  return wait_of(line.paced(max(now + 1, state.free_at), plan.steps, line.ahead_of(plan)), state.limit ~= '' and state.limit,
    min(ticket.place, head.tickets), check_at, now, head.paused > now and 'paused' or 'line', 'estimate')
end

-- The reply to an ask that does not stand in line, and would have to.
local function behind(now, plan, steps)
  local line, paused = line_module(), records.head.paused
  local state, ahead = line.line_state(), line.ahead_of(plan)
  local at, last, timing = line.goes(now, plan, steps, ahead)
  local reason = 'line'
  if paused > now then reason, timing = 'paused', 'estimate' end
  return wait_of(max(at, paused, state.free_at, now + 1), state.limit ~= '' and state.limit or last and last.base,
    ahead.tickets + 1, nil, now, reason, timing)
end

-- The command that is being decided, whose ticket may be the next to be called.
local function asker_of(now, ask, plan, id, holder, attempt)
  local asker = {id = id, has_taken = false}
  function asker.take(steps)
    asker.has_taken, asker.reply = true, grant(now, ask, plan, steps, now, id, holder, attempt)
    drop_own_wakes(id)
  end
  return asker
end

local function promise(now, ask, plan, steps, id, holder, attempt)
  local at, step = earliest(now, steps, max(now, records.head.paused))
  if at >= NEVER then
    return refusal_of(step and step.base, 'what is left of it is less, and nothing comes back', NEVER, now)
  end
  if at - now > ask.latest then return refusal_of(step and step.base, 'its time would come too late', at, now) end
  return grant(now, ask, plan, steps, at, id, holder, attempt)
end

-- Where nothing but the limits matters, a plain refusal leaves nothing behind, not even its number.
local function refused_quietly(now, plan)
  local head = records.head
  if head.paused ~= 0 or head.reason ~= '' or head.overrides ~= 0 or head.tickets ~= 0 or head.lost ~= 0
    or head.seq % REAP_EVERY == 0 or head.seq < records.seen or plan.adapts or not plan.fits
    or plan.policy.waiting ~= 'line' then
    return nil
  end
  if now < head.now then now = head.now end
  for _, step in ipairs(plan.steps) do
    if step.limit.leased then
      local state = states:get(step.member)
      if not state or space('leases', step.member):len() > step.value + 1e-9 - 1 or state[1] ~= 'concurrency' then
        return nil
      end
    end
  end
  local at, last = earliest_now(now, plan.steps)
  return at > now and wait_of(at, last.base, 1, nil, now, '', last.limit.leased and 'earliest' or 'exact') or nil
end

function admit(now, ask, plan, id, holder, attempt)
  if ask.plain then
    local reply = refused_quietly(now, plan)
    if reply then return reply end
  end
  return decide_ask(begin(now), ask, plan, id, holder, attempt)
end

-- The rest of `admit`, once the time is known.
function decide_ask(now, ask, plan, id, holder, attempt)
  local head = records.head
  local ticket = head.tickets > 0 and id ~= '' and line_module().find(id) or nil
  -- An attempt on record that stands in line has no permit, and is not over.
  if ask.remembered and not (ticket and ticket.remembered and ticket.attempt == attempt) then
    local reply = known_reply(now, plan, id, attempt)
    if reply then return reply end
  end
  if head.tickets > 0 then
    local line = line_module()
    if ticket and ask.waits and (ticket.session ~= ask.session or ticket.attempt ~= attempt) then
      line.adopt(ticket, ask.session, attempt)
    end
    local heard = ticket and line.hear(now, ticket.session, id)
    if heard or now >= line.line_state().timer_at then
      -- Its turn may come while it is here: where it asks for what its ticket does, with the limits that the line goes by.
      local asker = ticket and head.lost == 0 and same_plan(ticket.ref, plan.ref)
        and asker_of(now, ask, plan, id, holder, attempt)
      line.serve(now, asker)
      if asker and asker.has_taken then return asker.reply end
      ticket = id ~= '' and line.find(id) or nil
    end
    if ticket then return ticket_reply(now, ask, plan, id, holder, attempt, ticket) end
  end
  local steps = steps_in_force(now, plan)
  local excessive = too_large(plan, steps)
  if excessive then
    local lifts = too_large(plan, plan.steps) and NEVER or lifts_at(excessive.base, excessive.member)
    return refusal_of(excessive.base, too_large_text(excessive, plan, lifts), lifts, now)
  end
  if plan.policy.waiting == 'promise' then return promise(now, ask, plan, steps, id, holder, attempt) end
  local at, last
  if head.tickets > 0 and not ask.waits and line_module().is_behind(plan) then return behind(now, plan, steps) end
  if head.paused > now then
    at, last = earliest_now(now, steps)
    if at <= head.paused then at, last = head.paused, nil end
  elseif head.tickets > 0 and line_module().is_behind(plan) then
    check_kinds(steps)
  else
    at, last = earliest_now(now, steps)
    if at <= now then return grant(now, ask, plan, steps, now, id, holder, attempt) end
  end
  if not ask.waits then
    local reason = head.paused > now and not last and 'paused' or ''
    return wait_of(at, last and last.base, head.tickets + 1, nil, now, reason,
      last and last.limit.leased and 'earliest' or 'exact')
  end
  remember(plan.policy)
  local line = line_module()
  if line.stand(now, plan, id, ask.session, holder, ask.lease, ask.remembered, attempt) then
    local asker = asker_of(now, ask, plan, id, holder, attempt)
    line.serve(now, asker)
    if asker.has_taken then return asker.reply end
    -- Another kind was called first, under a name that had no state before.
    if not line.find(id) then check_kinds(steps) end
  end
  return ticket_reply(now, ask, plan, id, holder, attempt, line.find(id))
end
