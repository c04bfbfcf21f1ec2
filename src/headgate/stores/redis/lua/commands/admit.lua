-- The commands: the port of commands/. Each decides about one gate; a reply is what redis_wire.py makes a value of.

local REAP, SLOWER, TAKEN_BACK = 512, 1000, 2

-- A number that a reply can carry exactly: as text above 2^53.
local function whole(number)
  return number > NEVER and format('%.0f', number) or number
end

function wait_of(at, limit, position, check_at, now, reason)
  return {'W', whole(at), limit or false, position, check_at or false, now, reason or ''}
end

function refusal_of(limit, reason, at, now)
  return {'R', limit or false, reason, whole(at), now}
end

-- Ended: a number, lost 1 and adapted 2; with its moment where the permit goes on.
local function ended_of(lost, adapted)
  return (lost and 1 or 0) + (adapted and 2 or 0)
end

-- Where the state of a kind says what called tickets hold.
local HELD = {window = 4, bucket = 4, quota = 3}

-- Among what is assumed after a loss: that the line is gone, and nobody holds anything any more.
local NO_LINE = ''

local function is_overridden(member)
  local overrides = space('overrides')
  local name, key = partition(member, '|')
  local base = partition(name, '@')
  return overrides:get(base) ~= nil or overrides:get(base .. '|' .. key) ~= nil
end

-- Forget what no longer says anything: idle keys, ended permits. Their scores are lower bounds, checked here.
local function reap(now)
  records.head.policy = '' -- it may be gone; whoever leaves one next looks
  for _ = 1, REAP do
    local score, member = states:first()
    if not score or score > now then break end
    local state = states:get(member)
    local until_ = state and kind_of(state[1]).until_(member, state) or 0
    if until_ <= now and state and state[1] == 'bucket' and records.head.overrides > 0 and is_overridden(member) then
      until_ = until_ + (until_ - state[3]) * SLOWER -- at the rate in force it may run off far more slowly
    end
    if until_ <= now and state and HELD[state[1]] and state[HELD[state[1]]] ~= 0 then
      until_ = now + SECOND -- a call holds some of it, which has no end of its own
    end
    if until_ > now then
      states:put(member, state, min(until_, now + 3600 * SECOND))
    else
      states:delete(member)
      drop('windows', member)
      drop('promised', member)
      drop('leases', member)
    end
  end
  for _ = 1, REAP do
    local score, id = permits:first()
    if not score or score > now then return end
    local permit = permits:get(id)
    local until_ = permit and permit[3] + REMEMBER or 0
    if until_ > now then
      permits:put(id, permit, until_)
    else
      permits:delete(id)
    end
  end
end

-- State was lost, all of it or a key. From now on rates come back with time, and live holders register again.
function lose(now)
  if records.noticed then return end
  records.noticed = true
  states_there() -- as long as the head tells
  drop('assumed')
  local head = records.head
  head.lost = now
  -- What the head knows of the other keys may not be so any more.
  head.overrides, head.tickets, head.ends, head.policy = space('overrides'):len(), space('tickets'):len(), '', ''
end

-- The store's time, never backwards; and state that was lost is noticed here.
function begin(now)
  local head = records.head
  local seq = head.seq
  if now < head.now then now = head.now end
  head.now = now
  if seq < records.seen or records.torn then
    records.torn = false
    head.seq = max(seq, records.seen) + 1
    lose(now)
    if records.forgets_line then space('assumed'):set(NO_LINE, 1) end
  else
    head.seq = seq + 1
  end
  if seq % REAP_EVERY == 0 then reap(now) end
  return now
end

-- The plan's steps with the values in force, and lost state made up for.
local function steps_in_force(now, plan)
  local head = records.head
  local steps = head.overrides > 0 and current(plan) or plan.steps
  local lost = head.lost
  if lost ~= 0 then
    local assumed, over = space('assumed'), now > lost + REMEMBER
    for _, step in ipairs(steps) do
      local limit = step.limit
      if (limit.kind == 'window' or limit.kind == 'bucket') and now < lost + limit.per + limit.slack then over = false end
      if not assumed:get(step.member) then
        local state = states:get(step.member)
        if state and HELD[state[1]] and assumed:get(NO_LINE) then
          state[HELD[state[1]]] = 0
          states:touch(step.member)
        end
        limit:assume_used(now, step.member, step.value, lost)
        assumed:set(step.member, 1)
      end
    end
    if over then
      drop('assumed')
      head.lost = 0
    end
  end
  return steps
end

function too_large_text(step, plan)
  local limit = step.limit
  local whose = step.rank >= 0 and "the share of priority '" .. plan.policy.priorities[step.rank + 1] .. "'" or 'it'
  local most = limit.leased and 'no slot at all' or format('at most %g at once', limit:largest(step.value))
  return format('a cost of %g %s can never fit: %s allows %s', step.cost, limit.unit, whose, most)
end

-- Pause at least until then; a pause that is already longer stays.
function pause(until_, reason)
  local head = records.head
  if until_ > head.paused then head.paused, head.reason = until_, reason end
end

-- Whether two refs ask for the same, whatever version of the configuration asked.
local function same(ref, other)
  if ref == other then return true end
  local function equal(these, those)
    local left = {}
    for _, pair in ipairs(these) do left[pair[1]] = pair[2] end
    for _, pair in ipairs(those) do
      if left[pair[1]] ~= pair[2] then return false end
      left[pair[1]] = nil
    end
    return next(left) == nil
  end
  local a, b = unpacked(ref), unpacked(other)
  return a[2] == b[2] and equal(a[3], b[3]) and equal(a[4], b[4])
end

-- Whether they go by the same version of it too.
local function same_plan(ref, other)
  return ref == other or unpacked(ref)[1] == unpacked(other)[1] and same(ref, other)
end

-- The reply of so many grants in a row, with numbers from `seq` on; nil where the reply before it can say so as well.
function granted(at, expires, seq, worth, count)
  local last, tells = records.last, worth and 1 or 0
  if last and last[1] == at and last[2] == expires and last[3] + last[5] == seq and last[4] == tells then
    last[5] = last[5] + count
    return nil
  end
  last = {at, expires, seq, tells, count}
  records.last = last
  return last
end

-- --- asking -----------------------------------------------------------------------------------------------------------

local function grant(now, ask, plan, steps, at, id, holder)
  local head = records.head
  local expires = ask.lease ~= 0 and now + ask.lease or 0
  local seq = head.seq
  local worth = charge(now, steps, at, expires ~= 0 and {id, expires, {plan.ref, now, seq, holder}} or NO_LEASE)
  if expires ~= 0 or ask.remembered then remember(plan.policy) end
  if ask.remembered then
    local ends = expires ~= 0 and expires or at
    permits:put(id, {plan.ref, at, ends, seq, expires ~= 0, false, worth}, ends + REMEMBER)
  end
  -- Of a promise there is no lease: the time of the decision stands in its place.
  return granted(at, plan.policy.waiting == 'promise' and now or expires, seq, worth, 1)
end

local function again(now, plan, known)
  if not same(known[1], plan.ref) then return {'E', 'IdConflict'} end
  if plan.policy.waiting == 'promise' then return {known[2], now, known[4], known[7] and 1 or 0, 1} end
  return {known[2], known[5] and known[3] or 0, known[4], known[7] and 1 or 0, 1}
end

-- The asker learns it from the reply.
local function drop_own_wakes(id)
  local wakes = records.wakes
  if #wakes == 0 then return end
  local kept = {}
  for _, wake in ipairs(wakes) do
    if wake[2] ~= id then kept[#kept + 1] = wake end
  end
  records.wakes = kept
end

local function ticket_reply(now, ask, plan, id, holder, ticket)
  local line = line_module()
  if not same(ticket.ref, plan.ref) then return {'E', 'IdConflict'} end
  if ticket.called ~= 0 then
    -- Taking a call: what was held goes, and the charge is stamped now.
    local call_ends = ticket.called
    line.remove(now, ticket)
    local reply = grant(now, ask, plan, steps_in_force(now, plan), now, id, holder)
    if records.head.tickets > 0 and not line.is_certain(now, plan, call_ends) then line.serve(now) end
    drop_own_wakes(id)
    return reply
  end
  local meta, head = line.meta_of(), records.head
  local check_at = false
  if meta.timer == id then
    check_at = meta.timer_at
    drop_own_wakes(id)
  end
  return wait_of(max(now + 1, meta.free_at), meta.limit ~= '' and meta.limit, min(ticket.place, head.tickets), check_at,
    now, head.paused > now and 'paused' or '')
end

-- Whoever asks, and whose ticket may be the next.
local function asker_of(now, ask, plan, id, holder)
  local asker = {id = id, has_taken = false}
  function asker.take(steps)
    asker.has_taken, asker.reply = true, grant(now, ask, plan, steps, now, id, holder)
    drop_own_wakes(id)
  end
  return asker
end

local function promise(now, ask, plan, steps, id, holder)
  local at, step = earliest(now, steps, max(now, records.head.paused))
  if at - now > ask.latest then return refusal_of(step and step.base, 'its time would come too late', at, now) end
  return grant(now, ask, plan, steps, at, id, holder)
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
  return at > now and wait_of(at, last.base, 1, nil, now) or nil
end

function admit(now, ask, plan, id, holder)
  if ask.plain then
    local reply = refused_quietly(now, plan)
    if reply then return reply end
  end
  now = begin(now)
  local head = records.head
  local ticket = head.tickets > 0 and id ~= '' and line_module().find(id) or nil
  if ask.remembered and not (ticket and ticket.remembered) then -- who stands in line under an id on record has no permit
    local known = permits:get(id)
    if known then
      if known[3] + REMEMBER <= now then
        permits:delete(id) -- forgotten, and only not yet reaped
      elseif known[6] ~= TAKEN_BACK then
        return again(now, plan, known)
      end
    end
  end
  if head.tickets > 0 then
    local line = line_module()
    if ticket and ask.waits and ticket.session ~= ask.session then line.adopt(ticket, ask.session) end
    local heard = ticket and line.hear(now, ticket.session, id)
    if heard or now >= line.meta_of().timer_at then
      -- Its turn may come while it is here: where it asks for what its ticket does, with the limits that the line goes by.
      local asker = ticket and head.lost == 0 and same_plan(ticket.ref, plan.ref) and asker_of(now, ask, plan, id, holder)
      line.serve(now, asker)
      if asker and asker.has_taken then return asker.reply end
      ticket = id ~= '' and line.find(id) or nil
    end
    if ticket then return ticket_reply(now, ask, plan, id, holder, ticket) end
  end
  local steps = steps_in_force(now, plan)
  local excessive = too_large(plan, steps)
  if excessive then return refusal_of(excessive.base, too_large_text(excessive, plan), NEVER, now) end
  if plan.policy.waiting == 'promise' then return promise(now, ask, plan, steps, id, holder) end
  local at, last
  if head.paused > now then
    at = head.paused
  elseif head.tickets > 0 and line_module().is_behind(plan) then
    local meta = line_module().meta_of()
    at = max(now + 1, meta.free_at)
    if not ask.waits then return wait_of(at, meta.limit ~= '' and meta.limit, head.tickets + 1, nil, now) end
  else
    at, last = earliest_now(now, steps)
    if at <= now then return grant(now, ask, plan, steps, now, id, holder) end
  end
  if not ask.waits then
    local reason = head.paused > now and not last and 'paused' or ''
    return wait_of(at, last and last.base, head.tickets + 1, nil, now, reason)
  end
  remember(plan.policy)
  local line = line_module()
  if line.stand(now, plan, id, ask.session, holder, ask.lease, ask.remembered) then
    local asker = asker_of(now, ask, plan, id, holder)
    line.serve(now, asker)
    if asker.has_taken then return asker.reply end
  end
  return ticket_reply(now, ask, plan, id, holder, line.find(id))
end

-- --- ending -----------------------------------------------------------------------------------------------------------
--
-- Made when the first of a call is to be ended.

local function endings()
  -- Whether the lease is still ours: it is in the set, and has not expired unseen.
  local function lives(now, steps, id)
    local alive = true
    for _, step in ipairs(steps) do
      if step.limit.leased then
        local leases = space('leases', step.member)
        if records.head.tickets > 0 then leases:len() end -- whoever is called next needs it: sooner is cheaper
        prune(leases, now)
        if not leases:get(id) and not (step.limit:recover(now, step.member) and leases:get(id)) then alive = false end
      end
    end
    return alive
  end

  local function end_lease(now, steps, lost, end_, id, at)
    -- One that was lost on one limit (it was reset) may still hold a slot of another.
    local adapted = false
    for _, step in ipairs(steps) do
      local limit = step.limit
      if limit.leased then
        if limit.adaptive and not lost and limit:feedback(now, step.member, step.value, end_.outcome, at) then
          adapted = true
        end
        space('leases', step.member):delete(id)
      end
    end
    return adapted
  end

  local function amounts(now, steps, lost, end_, at, confirmed)
    -- A lost lease may have been released by somebody else, and all of this done then. Doing it again would give back, or
    -- shorten, what others were charged; so only what it cost in addition is charged.
    local outcome, actual = end_.outcome, end_.actual
    local told = end_.worth and not lost and confirmed == 0
      and (outcome == 'ok' or outcome == 'rate_limited' or outcome == 'overloaded' or (not outcome and not actual))
    for _, step in ipairs(steps) do
      local limit, cost = step.limit, step.cost
      if limit.leased then
        -- It has no amount.
      elseif outcome == 'unsent' then
        if not lost then limit:refund(now, step.member, cost, step.value, at, confirmed) end
      else
        local really = actual and actual[limit.unit]
        if really then
          local back = cost - really
          if back < 0 or not lost then limit:refund(now, step.member, back, step.value, at, confirmed) end
          cost = min(cost, really)
        end
        if told then limit:confirm(now, step.member, cost, step.value, at) end
      end
    end
  end

  -- Leave it with the lease and the id: who ends it from elsewhere must not confirm it a second time.
  local function mark_confirmed(now, steps, id, permit)
    for _, step in ipairs(steps) do
      if step.limit.leased then
        local leases = space('leases', step.member)
        local row = leases:get(id)
        leases:set(id, {row[1], row[2], row[3], row[4], now})
      end
    end
    if permit then
      permits:set(id, {permit[1], permit[2], permit[3], permit[4], permit[5], permit[6], permit[7], now})
    end
  end

  function settle(now, end_, plan, id, at)
    now = begin(now)
    local head, outcome = records.head, end_.outcome
    local steps = head.overrides > 0 and current(plan) or plan.steps
    local permit = end_.remembered and permits:get(id) or nil
    if permit and permit[6] then return 1 end -- releasing twice is harmless, and whoever comes second is told
    -- A confirmation that is said again, since its reply was lost, must not shorten what somebody else was charged.
    local confirmed = end_.confirmed
    if confirmed == 0 and permit then confirmed = permit[8] or 0 end
    local lost, adapted = false, false
    if plan.lease ~= 0 then
      lost = not lives(now, steps, id)
      if outcome then adapted = end_lease(now, steps, lost, end_, id, at) end
    end
    amounts(now, steps, lost, end_, at, confirmed)
    local only_confirmed = not outcome and not end_.actual
    if only_confirmed and not lost and confirmed == 0 then mark_confirmed(now, steps, id, permit) end
    if outcome and permit then
      local ended = outcome == 'unsent' and TAKEN_BACK or true
      permits:put(id, {permit[1], permit[2], now, permit[4], permit[5], ended, permit[7]}, now + REMEMBER)
    end
    if end_.retry_after ~= 0 and (outcome == 'rate_limited' or outcome == 'overloaded') then
      pause(now + end_.retry_after, 'upstream: ' .. outcome)
    end
    if head.tickets > 0 then
      local line = line_module()
      if not (only_confirmed and line.is_early(now, plan)) then
        line.freed(now, steps)
        line.serve(now)
      end
    end
    if not outcome then return {'D', lost and 1 or 0, only_confirmed and confirmed ~= 0 and confirmed or now} end
    return ended_of(lost, adapted)
  end

  -- The row of a lease: ref, granted at, fence, holder, and when it was confirmed if it was. An id made by a gate tells its
  -- key after a `~`.
  local function lease_row(policy, id)
    local _, told = partition(id, '~')
    local key = {}
    for part in told:gmatch('[^,]+') do
      local by, value = partition(part, '=')
      if part:find('=', 1, true) then key[by] = value end
    end
    for index, row in ipairs(policy.rows) do
      if row[8] < 0 and limit_of(policy, index).leased then
        local member = row[3] and row[2] .. '|' .. (key[row[3]] or '') or row[2]
        if states:get(member) then
          local found = space('leases', member):get(id)
          if found then return found end
        end
      end
    end
    return nil
  end

  function release(now, policy, id, outcome, retry_after, actual)
    local permit = permits:get(id) or lease_row(policy, id)
    if not permit then
      begin(now)
      return 1
    end
    local plan = recall(permit[1], policy)
    local confirmed = (#permit == 5 or #permit == 8) and permit[#permit] or 0
    local end_ = {outcome = outcome, remembered = true, retry_after = retry_after, actual = actual, confirmed = confirmed,
      worth = true}
    return settle(now, end_, plan, id, permit[2])
  end

  -- What a heartbeat needs to know of a lease, by its id alone: see changes.n.
  function lease_of(policy, id, length)
    local found = permits:get(id) or lease_row(policy, id)
    if not found then return nil end
    local plan = recall(found[1], policy)
    for _, step in ipairs(plan.steps) do
      if step.limit.leased then
        local row = space('leases', step.member):get(id)
        return row and {plan.ref, id, row[2], length ~= 0 and length or plan.lease, row[3], row[4]} or nil
      end
    end
    return nil
  end

  function cancel(now, policy, id)
    local ticket = records.head.tickets > 0 and line_module().find(id)
    if not ticket then return release(now, policy, id, 'unsent', 0, false) end
    local line = line_module()
    now = begin(now)
    line.hear(now, ticket.session)
    line.remove(now, line.find(id) or ticket)
    line.serve(now)
    return 0
  end
end

function settle(...)
  endings()
  return settle(...)
end

function release(...)
  endings()
  return release(...)
end

function cancel(...)
  endings()
  return cancel(...)
end

function lease_of(...)
  endings()
  return lease_of(...)
end
