-- Which limits an ask must pass: the port of plan.py. A policy comes compiled (see wire.py), with the call or from the
-- gate's `policies`. A ref is MessagePack: fingerprint, class, costs, key. It is compared and handed on as a string.

-- What policies and refs are compiled to never changes: a library caches it from call to call. Of plans only a few:
-- among many keys hardly one is asked for again, and the garbage collector pays more for a table that was kept than for
-- a new one.
local POLICIES, TEMPLATES, PLANS = 256, 256, 64
local policies, templates, plans, policies_made, templates_made, plans_made, remembered = {}, {}, {}, 0, 0, 0, {}

-- The part of the slack for which a grant is fresh: see plan.py.
local FRESH = 4

-- A call begins: these policies came with it.
function begin_plans(policies_sent)
  sent, remembered = policies_sent, {}
  if policies_made > POLICIES then policies, policies_made = {}, 0 end
  if templates_made > TEMPLATES then templates, templates_made = {}, 0 end
  if plans_made > PLANS then plans, plans_made = {}, 0 end
end

function policy_of(fingerprint)
  local policy = policies[fingerprint]
  if not policy then
    local blob = sent[fingerprint]
    local raw = blob and unpacked(blob) or space('policies'):get(fingerprint)
    if not raw then return nil end
    policy = {fingerprint = fingerprint, name = raw[1], waiting = raw[2], patience = raw[3], claim = raw[4], keys = raw[5],
      priorities = raw[6], life = raw[7], rows = raw[8], limits = {}}
    policies[fingerprint] = policy
    policies_made = policies_made + 1
  end
  if policy.life > records.life then records.life = policy.life end
  return policy
end

-- Store the policy beside the state, so that a command that serves the line later can make the plan again.
function remember(policy)
  local fingerprint = policy.fingerprint
  if remembered[fingerprint] then return end
  remembered[fingerprint] = true
  -- The head names one policy that is stored: mostly it is this one.
  local head = records.head
  if head.policy == fingerprint then return end
  local kept = space('policies')
  if head.policy == '' then head.policy = fingerprint end
  if call('HEXISTS', kept.key, fingerprint) == 0 then
    kept.packed = kept.packed or {}
    kept.packed[fingerprint] = sent[fingerprint]
    kept:set(fingerprint, true)
  end
end

-- A row: kind, member or what it begins with, by, unit, value, base, share, rank, and the numbers of its kind.
function limit_of(policy, index)
  local limit = policy.limits[index]
  if not limit then
    local row = policy.rows[index]
    limit = setmetatable({name = row[6], by = row[3], unit = row[4], limit = row[5]}, kind_of(row[1])):made(row)
    policy.limits[index] = limit
    if row[8] >= 0 then -- a class's share: the limit itself stands in the same gate, under the name that both have
      for at, other in ipairs(policy.rows) do
        if other[8] < 0 and other[6] == row[6] and limit_of(policy, at).adaptive then
          limit.whole, limit.share = limit_of(policy, at), row[7]
        end
      end
    end
  end
  return limit
end

-- What all asks of one class and cost have in common: the steps before the key is known. A plan and its steps hold only
-- what depends on the key, and look up the rest here: among many keys nearly every ask makes a plan.
local function template_of(policy, rank, costs)
  local cost_of = {}
  for _, pair in ipairs(costs) do cost_of[pair[1]] = pair[2] end
  local template = {policy = policy, rank = rank, lease = 0, adapts = false, weight = 0, soonest = 0, fits = true, rows = {},
    fresh = NEVER}
  template.template, template.__index = template, template
  for index, row in ipairs(policy.rows) do
    if row[8] <= rank then
      local limit, value = limit_of(policy, index), row[5]
      local cost = limit.leased and 1 or cost_of[limit.unit]
      local by = row[3]
      local step = {limit = limit, member = row[2], begins = row[2] .. '|', by = by, cost = cost, value = value, base = row[6],
        share = row[7], rank = row[8], keyed = by and true or false}
      step.__index = step
      template.rows[#template.rows + 1] = step
      template.weight = max(template.weight, cost / value)
      if cost > limit:largest(value) then template.fits = false end
      if limit.leased then
        template.lease = template.lease == 0 and limit.lease or min(template.lease, limit.lease)
        if limit.adaptive then template.adapts = true end
      else
        template.fresh = min(template.fresh, floor(limit.slack / FRESH))
        if limit.confirmable then
          template.soonest = template.soonest == 0 and limit.per or min(template.soonest, limit.per)
        end
      end
    end
  end
  return template
end

local function plan_of(template, ref, key)
  local steps, lane, first = template.rows, '', key[1]
  if first then
    local name, value, key_of = first[1], first[2], nil
    lane = name .. '=' .. value
    if key[2] then
      key_of = {[name] = value}
      for index = 2, #key do
        local pair = key[index]
        key_of[pair[1]] = pair[2]
        lane = lane .. ',' .. pair[1] .. '=' .. pair[2]
      end
    end
    steps = {}
    for index = 1, #template.rows do
      local row = template.rows[index]
      local by = row.by
      steps[index] = by and setmetatable({member = row.begins .. (by == name and value or key_of[by])}, row) or row
    end
  end
  local plan = setmetatable({ref = ref, lane = lane, steps = steps}, template)
  plans[ref] = plan
  plans_made = plans_made + 1
  return plan
end

local function keep(beginning, template)
  templates[beginning] = template
  templates_made = templates_made + 1
end

-- The plan of an ask: `beginning` is that of its ref, packed, and `key` the packed rest.
function plan_for(beginning, key)
  local ref = '\148' .. beginning .. key
  local template = templates[beginning]
  if not template then
    local plan = recall(ref)
    keep(beginning, plan.template)
    return plan
  end
  if template.policy.life > records.life then records.life = template.policy.life end
  return plans[ref] or plan_of(template, ref, unpacked(key))
end

-- The plan of a ref, by the policy that is stored with the state; by `known` where that was lost.
function recall(ref, known)
  local plan = plans[ref]
  if plan then
    if plan.policy.life > records.life then records.life = plan.policy.life end
    return plan
  end
  local parts = unpacked(ref)
  local policy = policy_of(parts[1])
  if not policy then
    if not known then error('headgate: the policy ' .. parts[1] .. ' of this gate is gone from the server') end
    plan = plan_of(template_of(known, parts[2], parts[3]), ref, parts[4])
    plans[ref] = nil -- it is made of another policy than its own
    return plan
  end
  local beginning = pack(parts[1], parts[2], parts[3]) -- not always as the client packs it
  local template = templates[beginning]
  if not template then
    template = template_of(policy, parts[2], parts[3])
    keep(beginning, template)
  end
  return plan_of(template, ref, parts[4])
end

-- As Python rounds a share of a value: to nine places.
function rounded(number)
  return tonumber(format('%.9f', number))
end

-- The steps with the values in force at the time of the head. What has come to its end by then goes first.
function current(plan)
  lapse()
  local changed = {}
  for index, step in ipairs(plan.steps) do
    changed[index] = {limit = step.limit, member = step.member, cost = step.cost,
      value = value_of(step.base, step.member, step.value, step.share), base = step.base, share = step.share,
      rank = step.rank, keyed = step.keyed}
  end
  return changed
end

-- The step that this ask could never pass, if there is one.
function too_large(plan, steps)
  if steps == plan.steps and plan.fits then return nil end
  for _, step in ipairs(steps) do
    if step.cost > step.limit:largest(step.value) then return step end
  end
  return nil
end

-- The first moment at which every limit allows it, and the limit that is last.
function earliest(now, steps, start)
  local at, last = start, nil
  while true do
    local before = at
    for _, step in ipairs(steps) do
      local from = (start > now or last) and at or start
      local moment = step.limit:earliest(now, step.member, step.cost, step.value, from)
      if moment > at then at, last = moment, step end
    end
    -- A promise must hold on all limits at the same time: ask again from there.
    if at == before or at >= NEVER then return at, last end
  end
end

-- `earliest` for a line gate, in one pass.
function earliest_now(now, steps)
  local at, last = now, nil
  for index = 1, #steps do
    local step = steps[index]
    local moment = step.limit:earliest(now, step.member, step.cost, step.value, now)
    if moment > at then at, last = moment, step end
  end
  return at, last
end

-- Like `earliest_now`; a keyed limit that refuses is named before a shared one.
function blocked_by(now, steps)
  local at, last = now, nil
  local keyed_at, keyed = now, nil
  for _, step in ipairs(steps) do
    local moment = step.limit:earliest(now, step.member, step.cost, step.value, now)
    if moment > at then at, last = moment, step end
    if moment > keyed_at and step.keyed then keyed_at, keyed = moment, step end
  end
  if keyed then return keyed_at, keyed end
  return at, last
end

-- Charge every limit. Returns whether confirming later would be worth it.
function charge(now, steps, at, lease)
  local worth = false
  for index = 1, #steps do
    local step = steps[index]
    if step.limit:charge(now, step.member, step.cost, step.value, at, lease) then worth = true end
  end
  return worth
end

function hold(now, steps, lease)
  for _, step in ipairs(steps) do step.limit:hold(now, step.member, step.cost, lease) end
end

-- Give back what `hold` kept. Where the state was lost and another kind came in its place, nothing of it is left.
function let_go(now, steps, lease)
  for _, step in ipairs(steps) do
    if not is_another_kind(step) then step.limit:hold(now, step.member, -step.cost, lease) end
  end
end

-- Whether the store holds another kind of limit under the name of a step: its own state was reset or lost.
function is_another_kind(step)
  local state = states:get(step.member)
  return state and state[1] ~= step.limit.kind
end

-- Raise KindChanged where the store holds another kind of limit under a name. `earliest` does it by itself.
function check_kinds(steps)
  for index = 1, #steps do state_of(steps[index].limit, steps[index].member) end
end
