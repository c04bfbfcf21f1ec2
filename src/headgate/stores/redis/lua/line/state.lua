-- The order of waiting asks: the port of line.py, function by function, with the same names and the same order of
-- arithmetic. What the spaces are, and why the order is what it is, is said at the head of line.py.
--
-- Most calls of the script find no ticket. Making a closure costs more than a decision does, so all functions of this
-- folder are made together, when `line_module()` is first called, by a command that sees a ticket or asks for one. A
-- library keeps them.

-- A process that was not heard of for this long is dead.
local SESSION = 10 * SECOND
-- What a tier is worth in the order of parked lanes: more than any tag.
local TIER = 2 ^ 40
-- A step of virtual time that is too short to matter, and long enough to tell before from after.
local INSTANT = 2 ^ -40
-- Why a ticket stands in no lane: another ticket of its process missed a call, or it missed its own.
local ASLEEP, MISSED = 1, 2
line.ASLEEP, line.MISSED = ASLEEP, MISSED
-- What is known of a process: it may be there; it is asleep; it was subscribed when something was last published to it.
local THERE, SLEEPS, LISTENS = 0, 1, 2

-- Keys of the line are gone: what is left of it is of no use (see `reply_to` in main.lua).
local function broken()
  error('attempt to serve a line of which keys are gone')
end

local _enter, _leave, _forget, _make_ready, _unpark, _drop_from, _close, _turn, _count, _ahead, freed, remove, _take_off

-- A LineState and a Ticket are stored as arrays, in the order of line.py, and have names here. A LineState has one field
-- more: `plain` while no ticket has a class or a key, so that no ticket is `young` and no lane is parked until something
-- is `due`.

local state, state_changed = false, false

-- A call begins.
function line.begin()
  state, state_changed = false, false
end

-- One get and one write for a whole batch: `finish` is called when the batch is done. A change sets `state_changed`.
local function line_state()
  if not state then
    local found = space('line'):get('meta')
    if found then
      state = {
        arrivals = found[1], tiers = found[2], timer = found[3], timer_at = found[4], blocked = found[5],
        turns = found[6], limit = found[7], free_at = found[8], plain = found[9] or false,
      }
    else
      state = {arrivals = 0, tiers = 1, timer = '', timer_at = NEVER, blocked = {}, turns = {0}, limit = '', free_at = 0,
        plain = records.head.tickets == 0}
    end
  end
  return state
end
line.line_state = line_state

function line.finish()
  if state_changed then
    state_changed = false
    space('line'):set('meta', {
      state.arrivals, state.tiers, state.timer, state.timer_at, state.blocked, state.turns, state.limit, state.free_at,
      state.plain,
    })
  end
end

local function find(id)
  local row = id and space('tickets'):get(id)
  if not row then return nil end
  return {
    id = row[1], session = row[2], ref = row[3], lane = row[4], rank = row[5], tier = row[6], since = row[7],
    arrival = row[8], place = row[9], weight = row[10], holder = row[11], lease = row[12], remembered = row[13],
    called = row[14], hidden = row[15], attempt = row[16] or '',
  }
end
line.find = find

-- Of these tickets, those whose waiters should ask: they were called or missed a call; and those that are gone.
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
    ticket.attempt,
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

-- Whether a new ask would stand behind a ticket that waits.
function line.is_behind(plan)
  local rank = plan.rank
  for _, from in ipairs(line_state().blocked) do
    if rank >= from[1] and rank >= from[2] then return true end
  end
  if space('lanes'):get(rank .. '.' .. rank .. '.' .. plan.lane) then return true end
  return _ahead(plan.steps, (rank + 1) * TIER) ~= nil
end

-- The member of these steps at which a lane that goes before `order` is parked, if there is one.
function _ahead(steps, order)
  local due = space('due')
  for _, step in ipairs(steps) do
    if step.keyed and due:get(step.member) then -- every member at which a lane is parked is due at some time
      local score = space('parked', step.member):first()
      if score and score < order then return step.member end
    end
  end
  return nil
end
