-- A batch of equal asks that can all go now, as most batches are: decided as they would be one by one, with the same
-- numbers and the same records, but what they have in common is looked at once.

-- How many of `ids`, from one on and at most so many, were granted; 0 where the next is to be decided by itself. And the
-- reply, where they need one of their own.
function admit_many(now, ask, plan, ids, holders, from, most)
  local head = records.head
  local seq, lease, steps = head.seq, ask.lease, plan.steps
  if now < head.now then now = head.now end
  if head.tickets ~= 0 or head.overrides ~= 0 or head.lost ~= 0 or head.paused > now or seq < records.seen or records.torn
    or seq % REAP_EVERY == 0 or not plan.fits or plan.policy.waiting ~= 'line' or (plan.lease ~= 0) ~= (lease ~= 0) then
    return 0
  end
  most = min(most, REAP_EVERY - seq % REAP_EVERY)
  local worth = false
  for index = 1, #steps do
    local step, worth_it = steps[index], false
    if not step.limit.room then return 0 end
    most, worth_it = step.limit:room(now, step.member, step.cost, step.value, most)
    if most == 0 then return 0 end
    worth = worth or worth_it
  end
  local remembered = ask.remembered
  if remembered then
    most = permits:reserve_ids(ids, from, most)
    if most == 0 then return 0 end
  end
  local expires = lease ~= 0 and now + lease or 0
  for index = 1, #steps do
    local step = steps[index]
    local limit = step.limit
    if limit.leased then
      for each = 0, most - 1 do
        local row = {plan.ref, now, seq + 1 + each, holders[from + each] or false}
        limit:charge(now, step.member, step.cost, step.value, now, {ids[from + each], expires, row})
      end
    else
      limit:take(now, step.member, step.cost, step.value, most)
    end
  end
  head.seq, head.now = seq + most, now
  if remembered or lease ~= 0 then remember(plan.policy) end
  if remembered then
    -- As `grant` puts it.
    local ends = lease ~= 0 and expires or now
    if lease == 0 then
      permits:put_many(ids, from, most, '\151' .. pack(plan.ref, now, ends), seq + 1, pack(false, false, worth), ends + REMEMBER)
    else
      for each = 0, most - 1 do
        permits:put(ids[from + each], {plan.ref, now, ends, seq + 1 + each, lease ~= 0, false, worth}, ends + REMEMBER)
      end
    end
  end
  return most, granted(now, expires, seq + 1, worth, most)
end
