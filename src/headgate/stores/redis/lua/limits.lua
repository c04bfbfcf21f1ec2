-- What every limit is, as limits/base.py has it: a table with its numbers, whose kind answers
-- earliest / charge / refund / restamp / hold / confirm / until_ / assume_used / describe. A kind is made when a plan first
-- has one: making its functions costs more than a decision does.

NO_LEASE = {'', 0, false}

-- An error that is the reply of one command: the others of the batch stand.
function raise(name, ...)
  error({reply = {'E', name, ...}})
end

function kind_changed(member, was, now)
  raise('KindChanged', member, was, now)
end

-- How many asks of a size fit into a limit at once; one at least.
function fitting(value, size)
  return max(1, floor(value / size + 1e-9))
end

makers = {}
local KINDS = {}

-- A kind by its name. What few decisions need of it is made by `more`, when one of those functions is first looked up.
function kind_of(name)
  local kind = KINDS[name]
  if not kind then
    local more
    kind, more = makers[name]()
    kind.__index = kind
    if more then
      setmetatable(kind, {__index = function(_, wanted)
        setmetatable(kind, nil)
        more()
        return kind[wanted]
      end})
    end
    KINDS[name] = kind
  end
  return kind
end

local OUTCOMES = nil

-- What follows from how a permit ended, as OUTCOMES of kernel/model.py has it; no flag is set where it goes on (false).
function outcome_of(name)
  OUTCOMES = OUTCOMES or {[false] = {}, --[[OUTCOMES]]}
  return OUTCOMES[name]
end

-- The state of a limit's member, or nil; an error where it is of another kind.
function state_of(limit, member)
  local state = states:get(member)
  if state and state[1] ~= limit.kind then kind_changed(member, state[1], limit.kind) end
  return state
end

-- What counted on a rate is gone, or a part of it: it counts as used up from now on, and comes back with time.
function used_up(limit, now, member, value)
  lose(now)
  limit:assume_used(now, member, value, records.head.lost)
  space('assumed'):set(member, 1)
  return states:get(member)
end

-- A rate has no state: nothing was used (nil), or all states are gone.
function recovered(limit, now, member, value)
  if states_there() then return nil end
  drop('windows', member)
  drop('promised', member)
  return used_up(limit, now, member, value)
end

function partition(text, sign)
  local at = text:find(sign, 1, true)
  if not at then return text, '' end
  return text:sub(1, at - 1), text:sub(at + #sign)
end

-- A LimitUsage, in the order of model.py.
function usage_of(limit, member, used, value, free_in, resets_in, maximum, promised)
  local _, key = partition(member, '|')
  return {limit.name, limit.kind, limit.unit, key ~= '' and key or false, used, value, max(0, value - used - (promised or 0)),
    used / value,
    free_in < NEVER / 2 and max(0, free_in) / SECOND or INFINITE, resets_in and max(0, resets_in) / SECOND or false,
    maximum or false, promised or 0}
end
