-- Ends: the port of commands/settle.py.

--
-- Made when the first of a call is to be ended.

local lives, charged_at, lease_row

local function endings()
  -- Whether the lease is still its holder's: it is in the set, and has not expired unseen.
  function lives(now, steps, id)
    local alive = true
    for _, step in ipairs(steps) do
      if step.limit.leased then
        local leases = space('leases', step.member)
        if records.head.tickets > 0 then leases:len() end -- serving the line needs it, and now it is cheaper
        prune(leases, now)
        if not leases:get(id) and not (step.limit:recover(now, step.member) and leases:get(id)) then alive = false end
      end
    end
    return alive
  end

  -- From when on a permit is charged that was granted at `at`: its sent stamp may have moved that.
  function charged_at(steps, permit, id, at)
    local sent = permit and permit[10]
    for _, step in ipairs(not permit and steps or {}) do
      local row = step.limit.leased and space('leases', step.member):get(id)
      if row then
        sent = row[6]
        break
      end
    end
    return sent and sent ~= 0 and sent or at
  end

  local function end_lease(now, steps, lost, end_, id, at)
    -- One that was lost on one limit (it was reset) may still hold a slot of another.
    local adapted = {}
    for _, step in ipairs(steps) do
      local limit = step.limit
      if limit.leased then
        if limit.adaptive and not lost then
          local old, new = limit:feedback(now, step.member, step.value, end_.outcome, at)
          if old then
            local _, key = partition(step.member, '|')
            adapted[#adapted + 1] = {step.base, key ~= '' and key or false, format('%.17g', old), format('%.17g', new)}
          end
        end
        space('leases', step.member):delete(id)
      end
    end
    return adapted
  end

  local function amounts(now, steps, lost, end_, at, confirmed)
    -- A lost lease may have been released by another process, and all of this done then. Doing it again would give back, or
    -- shorten, what other permits were charged; so only what it cost in addition is charged.
    local outcome, actual = outcome_of(end_.outcome), end_.actual
    local confirms = end_.worth and not lost and confirmed == 0
      and (outcome.answered or (not end_.outcome and not actual))
    for _, step in ipairs(steps) do
      local limit, cost = step.limit, step.cost
      if limit.leased or is_another_kind(step) then
        -- It has no amount, or that was forgotten.
      elseif outcome.refunds then
        if not lost then limit:refund(now, step.member, cost, step.value, at, confirmed) end
      else
        local really = actual and actual[limit.unit]
        if really then
          local back = cost - really
          if back < 0 or not lost then limit:refund(now, step.member, back, step.value, at, confirmed) end
          cost = min(cost, really)
        end
        if confirms then limit:confirm(now, step.member, cost, step.value, at) end
      end
    end
  end

  -- Store it with the lease and the id: a release by another process must not confirm it a second time.
  local function mark_confirmed(now, steps, id, permit)
    for _, step in ipairs(steps) do
      if step.limit.leased then
        local leases = space('leases', step.member)
        local row = leases:get(id)
        leases:set(id, {row[1], row[2], row[3], row[4], now, row[6]})
      end
    end
    if permit then
      permits:set(id, permit_row(permit, permit[3], permit[6], now, permit[9] or '', permit[10] or 0))
    end
  end

  -- Whether the lease under an id is that of another permit: the id was asked again after this one had ended.
  local function is_anothers(steps, id, fence)
    for _, step in ipairs(steps) do
      local row = step.limit.leased and space('leases', step.member):get(id)
      if row then return row[3] ~= fence end
    end
    return false
  end

  function settle(now, end_, plan, id, at, fence)
    now = begin(now)
    local head, outcome = records.head, end_.outcome
    local steps = head.overrides > 0 and current(plan) or plan.steps
    local permit = end_.remembered and permits:get(id) or nil
    -- Releasing twice is harmless; the second says so.
    if permit and (permit[6] or fence ~= 0 and permit[4] ~= fence) then return 1 end
    -- A confirmation that is repeated, since its reply was lost, must not shorten what another permit was charged.
    local confirmed = end_.confirmed
    if confirmed == 0 and permit then confirmed = permit[8] or 0 end
    if fence ~= 0 and is_anothers(steps, id, fence) then return 1 end
    local lost, adapted, charged = false, {}, at
    if plan.lease ~= 0 then
      lost = not lives(now, steps, id)
      charged = charged_at(steps, permit, id, at)
      if outcome then adapted = end_lease(now, steps, lost, end_, id, at) end
    elseif permit then
      charged = charged_at(steps, permit, id, at)
    end
    amounts(now, steps, lost, end_, charged, confirmed)
    local only_confirmed = not outcome and not end_.actual
    if only_confirmed and not lost and confirmed == 0 then mark_confirmed(now, steps, id, permit) end
    if outcome and permit then
      local ends = permit[5] and permit[3] <= now and permit[3] or now -- it ended when its lease expired, or now
      permits:put(id, permit_row(permit, ends, true, 0, permit[9] or '', 0), ends + REMEMBER)
    end
    if end_.retry_after ~= 0 and outcome_of(outcome).pauses then
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

  -- The row of a lease: ref, granted at, fence, holder, and when it was confirmed and stamped if it was. An id made by a gate
  -- has its key after a `~`.
  function lease_row(policy, id)
    local _, key_text = partition(id, '~')
    local key = {}
    for part in key_text:gmatch('[^,]+') do
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

  -- Whether a permit was granted after a release was said that comes late, `ago` microseconds after it.
  local function came_later(now, policy, granted_at, ago)
    return ago ~= 0 and policy.waiting ~= 'promise' and granted_at > max(now, records.head.now) - ago
  end

  function release(now, policy, id, outcome, retry_after, actual, ago)
    local known = permits:get(id)
    local permit = known or lease_row(policy, id)
    if not permit or known and known[6] or came_later(now, policy, permit[2], ago) then
      begin(now)
      return 1
    end
    local plan = recall(permit[1], policy)
    local confirmed = permit[known and 8 or 5] or 0
    local end_ = {outcome = outcome, remembered = true, retry_after = retry_after, actual = actual, confirmed = confirmed,
      worth = true}
    return settle(now, end_, plan, id, permit[2], 0)
  end

  -- What a heartbeat needs to know of a lease, by its id alone: see changes.n.
  function lease_of(policy, id, length)
    local known = permits:get(id)
    local found = known or lease_row(policy, id)
    if not found or known and known[6] then return nil end
    local plan = recall(found[1], policy)
    for _, step in ipairs(plan.steps) do
      if step.limit.leased then
        local row = space('leases', step.member):get(id)
        return row and {plan.ref, id, row[2], length ~= 0 and length or plan.lease, row[3], row[4]} or nil
      end
    end
    return nil
  end

  function cancel(now, policy, id, attempt, answered)
    local ticket = records.head.tickets > 0 and line_module().find(id)
    local name = name_of(id, attempt)
    if ticket and ticket.attempt == attempt then
      local line = line_module()
      now = begin(now)
      line.hear(now, ticket.session)
      line.remove(now, line.find(id) or ticket)
      line.serve(now)
      if not answered then bury(name, now) end
      return 0
    end
    local permit = permits:get(id)
    local attempts = permit and permit[9] or ''
    local alive = permit and permit_lives(permit, max(now, records.head.now))
    if not permit and attempt == '' or alive and attempts == attempt then
      local reply = release(now, policy, id, 'unsent', 0, false, 0)
      if not permit and reply % 2 == 1 and not answered then bury(name, records.head.now) end
      return reply
    end
    now = begin(now)
    if alive and attempt ~= '' and among(attempts, attempt) then
      local others = {}
      for other in attempts:gmatch('%S+') do
        if other ~= attempt then others[#others + 1] = other end
      end
      local left = table.concat(others, ' ')
      permits:set(id, permit_row(permit, permit[3], permit[6], permit[8] or 0, left, permit[10] or 0))
    end
    if (attempt ~= '' or attempts == '') and not answered then bury(name, now) end
    return 1
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
