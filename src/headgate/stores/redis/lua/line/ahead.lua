-- How much stands in line before an ask, and when that will have gone: the port of ahead.py, where the record `queued` is
-- explained.

local function _same_costs(these, those)
  if #these ~= #those then return false end
  local left = {}
  for _, pair in ipairs(these) do left[pair[1]] = pair[2] end
  for _, pair in ipairs(those) do
    if left[pair[1]] ~= pair[2] then return false end
  end
  return true
end

-- The sums with these costs added, or taken off (sign -1).
local function _added(units, costs, sign)
  local more, sums = {}, {}
  for _, pair in ipairs(costs) do more[pair[1]] = pair[2] end
  for index, pair in ipairs(units) do
    sums[index] = {pair[1], pair[2] + sign * (more[pair[1]] or 0)}
    more[pair[1]] = nil
  end
  for _, pair in ipairs(costs) do
    if more[pair[1]] then sums[#sums + 1] = {pair[1], sign * pair[2]} end
  end
  return sums
end

-- A ticket stands in its lane from now on; `opened` where it is the first there.
local function _entered(ticket, opened)
  local kept = space('line')
  local rows, at = kept:get('queued') or {}, ticket.tier + 1
  for tier = #rows + 1, at do rows[tier] = {0, 0, 0, {}} end
  local row, costs = rows[at], unpacked(ticket.ref)[3]
  local tickets, mixed, units = row[1], row[3], row[4]
  if tickets == 0 then
    mixed, units = 0, costs
  elseif mixed == 1 or not _same_costs(units, costs) then
    if mixed == 0 then
      mixed = 1
      local sums = {}
      for index, pair in ipairs(units) do sums[index] = {pair[1], pair[2] * tickets} end
      units = sums
    end
    units = _added(units, costs, 1)
  end
  rows[at] = {tickets + 1, row[2] + (opened and 1 or 0), mixed, units}
  kept:set('queued', rows)
end

-- A ticket no longer stands in its lane; `closed` where it was the last there.
local function _left(ticket, closed)
  local kept = space('line')
  local rows, at = kept:get('queued'), ticket.tier + 1
  local row = rows and rows[at]
  if not row or row[1] == 0 then return end
  if row[1] > 1 then
    local units = row[3] == 1 and _added(row[4], unpacked(ticket.ref)[3], -1) or row[4]
    rows[at] = {row[1] - 1, max(0, row[2] - (closed and 1 or 0)), row[3], units}
  else
    rows[at] = {0, 0, 0, {}}
  end
  kept:set('queued', rows)
end

-- What stands before a new ask: tickets, of them those of its own key, what one costs by unit, whether all are alike.
function line.ahead_of(plan)
  local rows, tickets, lanes, sums = space('line'):get('queued') or {}, 0, 0, {}
  local costs = unpacked(plan.ref)[3]
  local alike = #plan.policy.priorities == 0 and plan.lane == ''
  for tier = 1, min(#rows, plan.rank + 1) do
    local row = rows[tier]
    local count = row[1]
    if count > 0 then
      tickets, lanes = tickets + count, lanes + row[2]
      alike = alike and row[3] == 0 and _same_costs(row[4], costs)
      for _, pair in ipairs(row[4]) do
        sums[pair[1]] = (sums[pair[1]] or 0) + (row[3] == 1 and pair[2] or pair[2] * count)
      end
    end
  end
  if alike or tickets == 0 then
    sums = {}
    for _, pair in ipairs(costs) do sums[pair[1]] = pair[2] end
  else
    for unit, total in next, sums do sums[unit] = total / tickets end
  end
  if tickets == 0 then
    tickets = records.head.tickets
    return {tickets = tickets, own = tickets, size = sums, alike = false}
  end
  if plan.lane == '' then return {tickets = tickets, own = tickets, size = sums, alike = alike} end
  -- Lanes take turns: before it each of them has as many turns as its own lane has tickets, and one more.
  local mine = 0
  if space('lanes'):get(plan.rank .. '.' .. plan.rank .. '.' .. plan.lane) then mine = ceil(tickets / max(1, lanes)) end
  return {tickets = min(tickets, lanes * (mine + 1)), own = mine, size = sums, alike = false}
end

-- When those ahead will have gone and the ask can go, the limit that is last, and how sure that is.
function line.goes(now, plan, steps, ahead)
  local at, last, waits, slots, far = now, nil, 0, false, false
  for _, step in ipairs(steps) do
    local limit, count = step.limit, step.keyed and ahead.own or ahead.tickets
    local size = limit.leased and 1 or ahead.size[limit.unit] or step.cost
    local moment = limit:after(now, step.member, step.cost, step.value, count, size)
    far = far or limit.is_far and limit:is_far(step.value, count, size)
    if moment > now then
      waits = waits + 1
      slots = slots or limit.leased
    end
    if moment > at then at, last = moment, step end
  end
  if slots then return at, last, 'earliest' end
  return at, last, ahead.alike and waits <= 1 and not far and plan.lease == 0 and 'exact' or 'estimate'
end

-- The same at a glance, for an ask that stands in line itself: the first goes at `free_at`, the others at the long-run rate.
function line.paced(free_at, steps, ahead)
  local pace = 0
  for _, step in ipairs(steps) do
    local limit = step.limit
    if not limit.leased then
      local count = (step.keyed and ahead.own or ahead.tickets) - 1 -- its own ticket stands there too
      pace = max(pace, count * (ahead.size[limit.unit] or step.cost) * limit:pace(step.value))
    end
  end
  return free_at + floor(pace)
end
