-- The sent stamp: the port of commands/stamp.py.

-- Another time, since it has missed its own: what was promised to others meanwhile goes before it.
local function promise_again(now, rates, at)
  for _, step in ipairs(rates) do step.limit:refund(now, step.member, step.cost, step.value, at, 0) end
  local go_at, last = earliest(now, rates, now)
  if go_at > now and records.head.paused > go_at then go_at, last = earliest(now, rates, records.head.paused) end
  charge(now, rates, go_at, NO_LEASE)
  return go_at, go_at > now and (last or rates[1]) or nil
end

-- Store it with the lease and the id: its end must find what it was charged where that is now.
local function mark(steps, permit, id, sent)
  for _, step in ipairs(id ~= '' and steps or {}) do
    local leases = step.limit.leased and space('leases', step.member)
    local row = leases and leases:get(id)
    if row then leases:set(id, {row[1], row[2], row[3], row[4], row[5] or 0, sent}) end
  end
  if permit then
    local ends = permit[5] and permit[3] or max(permit[3], sent)
    permits:set(id, permit_row(permit, ends, permit[6], permit[8] or 0, permit[9] or '', sent))
  end
end

-- wanted: policy, id, ref of the plan or false, when it is charged, how long ago it was written or 0, its fence or 0.
function stamp(now, wanted)
  if not lives then endings() end
  now = begin(now)
  local policy, id, head, ago = policy_of(wanted[2]), wanted[3], records.head, wanted[6]
  local permit = id ~= '' and permits:get(id) or nil
  local found = permit or (id ~= '' and lease_row(policy, id)) or nil
  if permit and permit[6] or found and wanted[7] ~= 0 and found[permit and 4 or 3] ~= wanted[7] then return 1 end
  local plan = wanted[4] and recall(wanted[4]) or (found and recall(found[1], policy))
  if not plan then return 1 end
  local granted_at = found and found[2] or wanted[5]
  local steps = steps_in_force(now, plan)
  -- Where the store lost its state, the holder has not lost its slot: it registers again with its next heartbeat.
  if id ~= '' and plan.lease ~= 0 and not lives(now, steps, id) and granted_at >= lost_before() then return 1 end
  local at = charged_at(steps, permit, id, granted_at)
  local sent = ago ~= 0 and max(at, now - ago) or now
  local confirmed = found and found[permit and 8 or 5] or 0
  if confirmed ~= 0 or (sent >= at and sent - at <= plan.fresh) then return {'D', 0, at} end
  local rates = {}
  for _, step in ipairs(steps) do
    if not step.limit.leased and step.cost > 0 and not is_another_kind(step) then rates[#rates + 1] = step end
  end
  local go_at, last = now, nil
  if plan.policy.waiting == 'promise' and ago == 0 then
    if at > now then return wait_of(at, nil, 0, nil, now) end -- its time is still to come
    go_at, last = promise_again(now, rates, at)
    sent = go_at
  else
    for _, step in ipairs(rates) do
      local moment = step.limit:restamp(now, step.member, step.cost, step.value, at, sent)
      if moment > go_at then go_at, last = moment, step end
    end
  end
  mark(steps, permit, id, sent)
  if head.tickets > 0 then
    -- It frees nothing; but by another version of the configuration the same state may have room.
    local line = line_module()
    line.freed(now, steps)
    line.serve(now)
  end
  if ago ~= 0 or not last then return {'D', 0, sent} end
  return wait_of(go_at, last.base, 0, nil, now)
end
