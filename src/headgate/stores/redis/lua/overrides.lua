-- The values of limits while running: the port of overrides.py, which has the rules. What only changes them is in changes.lua.

-- Where overrides of a state are filed: those of its limit, and those of its key, which go before them.
local function members_of(base, member)
  local _, key = partition(member, '|')
  return key ~= '' and {base, base .. '|' .. key} or {base}
end

-- The value in force of a limit that is `own` where nothing overrides it, times a share of it.
function value_of(base, member, own, share)
  local overrides, terms, value = space('overrides'), space('terms'), own
  local filed = members_of(base, member)
  for _, one in ipairs(filed) do
    local found = overrides:get(one)
    if found ~= nil then value = rounded(found * share) end
  end
  for _, one in ipairs(filed) do
    local rows = terms:get('<' .. one)
    if rows then value = min(value, rounded(rows[1][1] * share)) end
  end
  return value
end

-- When something next ends that governs the value of a state; NEVER where nothing does by itself.
function lifts_at(base, member)
  local terms, at = space('terms'), NEVER
  for _, one in ipairs(members_of(base, member)) do
    at = min(at, terms:score('=' .. one) or NEVER, terms:score('<' .. one) or NEVER)
  end
  return at
end

-- Whether any value but its own may be in force for a state.
function is_overridden(member)
  local overrides, terms = space('overrides'), space('terms')
  for _, one in ipairs(members_of(partition(partition(member, '|'), '@'), member)) do
    if overrides:get(one) ~= nil or terms:get('<' .. one) ~= nil then return true end
  end
  return false
end

-- Have the head say whether there is anything here.
function count_overrides()
  records.head.overrides = space('overrides'):len() + space('terms'):len()
end

-- Values have changed: what was worked out by the old ones is worked out again.
function values_changed()
  count_overrides()
  for _, kind in ipairs({'windows', 'promised'}) do
    for _, name in ipairs(names(kind)) do
      space(kind, name):delete('hint')
      space(kind, name):delete('tail')
    end
  end
  if records.head.tickets > 0 then
    local due = space('due')
    for _, pair in ipairs(due:scan()) do due:put(pair[2], 1, records.head.now) end
  end
end

-- End what has come to its end by the time of the head.
function lapse()
  local terms, now = space('terms'), records.head.now
  local ends, member = terms:first()
  if not ends or ends > now then return end
  while ends and ends <= now do
    if member:sub(1, 1) == '=' then
      space('overrides'):delete(member:sub(2))
      terms:delete(member)
    else
      local rows = {}
      for _, row in ipairs(terms:get(member)) do
        if row[2] > now then rows[#rows + 1] = row end
      end
      if rows[1] then terms:put(member, rows, rows[1][2]) else terms:delete(member) end
    end
    ends, member = terms:first()
  end
  values_changed()
end
