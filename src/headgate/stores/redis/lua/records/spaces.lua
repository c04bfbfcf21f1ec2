-- Records: the state of one gate, as records.py has it. Read when asked for, cached for this call, written once at its end.
--
-- Keys, all of one gate and one slot (KEYS[1] is hg:{<gate>}, or prefix:hg:{<gate>}):
--
--   hg:{gate}                   HASH  the head: seq, now, and the rest of it (main.lua)
--   hg:{gate}:<kind>            HASH  member → value (MessagePack)
--   hg:{gate}:<kind>:z          ZSET  the same members in order: a moment in µs, a tag, an arrival
--   hg:{gate}:<kind>/<name>     the same for spaces that have a name: leases/in_flight, windows/rpm, lane/0.0.org=acme …
--   hg:{gate}:names/<kind>      SET   the names of a kind's spaces, for the kinds in LISTED
--
-- Kinds in BARE have no values: only the ZSET. Kinds in FLAT have no order: only the HASH. None is `false` inside arrays.
--
-- Nothing is written before the whole batch is decided: a call that fails on the way has changed nothing.
--
-- A server that evicts may take one key and leave the others. So `states` and every `leases/…` have one more member, MARK,
-- from when they are made: where that is missing, they are not empty but gone. A line whose keys no longer fit together
-- cannot be repaired: it is forgotten, and goes on under other keys (LINE).

local BARE = {lane = true, ready = true, parked = true, due = true, calls = true, of = true, young = true}
local FLAT = {tickets = true, lanes = true, line = true, policies = true, assumed = true, zones = true}
local NUMERIC = {windows = true, promised = true}
-- Kinds whose scores are moments: their keys must not expire before.
local MOMENTS = {states = true, windows = true, promised = true, leases = true, permits = true}
-- Spaces whose expiry is refreshed with the head, not with every write: see main.lua. The head says by these letters
-- which of them have been given an expiry; what a person has set has none.
local FIXED = {states = 's', permits = 'p', policies = 'o', zones = 'z', assumed = 'a', overrides = '', terms = ''}
local LISTED = {leases = true, windows = true, promised = true}
-- Spaces whose expiry need not be refreshed by every write once their keys are there: those of the line that have no
-- name are refreshed with the head too, leases once a day (concurrency.lua).
local LASTING = {leases = true, tickets = true, lanes = true, line = true, calls = true, sessions = true, due = true,
  young = true}
-- The spaces of the line.
local LINE = {tickets = true, lanes = true, line = true, lane = true, ready = true, parked = true, due = true, calls = true,
  sessions = true, of = true, young = true, rest = true}

-- No limit and no id has this name; its value is nil in MessagePack, should it be read.
local MARK, NOTHING = '', '\192'

-- In the place of a value: known to be absent; put with many others, see `put_many`.
local GONE, AMONG_MANY = {}, {}

-- Strings in the order of their bytes, as in a sorted set: `<` goes by the server's locale.
local function bytes_before(one, other)
  for at = 1, min(#one, #other) do
    local left, right = one:byte(at), other:byte(at)
    if left ~= right then return left < right end
  end
  return #one < #other
end

function is_before(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  if type(a[2]) == 'number' then return a[2] < b[2] end
  return bytes_before(a[2], b[2])
end

local Space = {}
Space.__index = Space

-- What all spaces of a kind have in common, and what a new one begins with: looked up in its class, not copied to each.
local CLASSES = {}

local function class_of(kind)
  local class = setmetatable({kind = kind, numeric = NUMERIC[kind] or false, bare = BARE[kind] or false,
    flat = FLAT[kind] or false, moments = MOMENTS[kind] or false, lasting = LASTING[kind] or false, used = false,
    cleared = false, dirty = false, count = false, stored = false, there = false, ordered = false, renewed = false,
    front = false, at = false, last = false, fetch = 2, whole = false, packed = false, many = false, enlist = false,
    bereft = false, marks = false, checked = false}, Space)
  class.__index = class
  CLASSES[kind] = class
  return class
end

-- A library keeps the spaces of the last few gates, empty: emptying one costs less than making it. `spaces` has those
-- of this gate, by kind and name; `used` those that this call uses.
local GATES, SPACES, FEW = 16, 48, 16
local kept, gates_kept, gate, spaces, used = {}, 0, nil, nil, nil

-- A value that may be changed in place without changing the other.
local function copied(value)
  if type(value) ~= 'table' or value == GONE or value == AMONG_MANY then return value end
  local made = {}
  for key, part in next, value do made[key] = copied(part) end
  return made
end

-- A space of `on_a_copy`: what this call has changed of it so far is what it begins with; all else is read.
local function begin_copy(self, below)
  if not (below.used and below.dirty) then return end
  self.values, self.scores, self.touched = copied(below.values), copied(below.scores), copied(below.touched)
  self.cleared, self.dirty, self.count, self.stored = below.cleared, true, below.count, below.stored
  self.many, self.bereft, self.marks, self.checked = below.many, below.bereft, below.marks, below.checked
end

function space(kind, name)
  local named = spaces[kind]
  if not named then
    named = {}
    spaces[kind] = named
  end
  name = name or ''
  local found = named[name]
  if not found then
    local key = TAG .. ':' .. kind
    if LINE[kind] and gate.line > 0 then key = key .. '.' .. gate.line end
    if name ~= '' then key = key .. '/' .. name end
    found = setmetatable({name = name, key = key, order = key .. ':z', values = {}, scores = {}, touched = {}},
      CLASSES[kind] or class_of(kind))
    named[name] = found
    gate.size = gate.size + 1
    local below = records.below and records.below[kind]
    if below and below[name] then begin_copy(found, below[name]) end
  end
  if not found.used then
    found.used = true
    used[#used + 1] = found
    if kind == 'leases' and #records.ids > 1 then found:prefetch(records.ids) end
  end
  return found
end

-- A table without its entries: the same where they are few, else a new one.
local function emptied(table_)
  local count = 0
  for key in next, table_ do
    count = count + 1
    if count > FEW then return {} end
    table_[key] = nil
  end
  return table_
end

-- Back to what it was when it was made. Fields that only matter beside `front` or `dirty` may stay.
local function empty(self)
  self.used, self.there, self.ordered, self.checked = false, false, false, false
  if next(self.values) ~= nil then self.values = emptied(self.values) end
  if next(self.scores) ~= nil then self.scores = emptied(self.scores) end
  if self.front then self.front, self.fetch = false, 2 end
  if self.count or self.stored then self.count, self.stored, self.bereft = false, false, false end
  if self.dirty then
    self.touched, self.dirty, self.cleared = emptied(self.touched), false, false
    self.packed, self.many, self.enlist, self.marks, self.renewed = false, false, false, false, false
  end
end

-- A member as it is named in Redis. Not by `..`, which keeps 14 digits of a number.
local function spelt(self, member)
  return self.numeric and type(member) == 'number' and format('%.0f', member) or member
end

-- Read many members in one go: those that are not cached.
function Space:prefetch(members)
  if self.cleared then return end
  local values, asked, wanted = self.values, {}, {}
  for _, member in ipairs(members) do
    if values[member] == nil then
      asked[#asked + 1] = spelt(self, member)
      wanted[#wanted + 1] = member
    end
  end
  for from = 1, #asked, 4000 do
    local raw = call('HMGET', self.key, unpack(asked, from, min(from + 3999, #asked)))
    for index, found in ipairs(raw) do values[wanted[from + index - 1]] = found and unpacked(found) or GONE end
  end
end

-- Of these members, from one on, how many in a row are known to be absent. They count as present from then on, for
-- `put_many`.
function Space:reserve_ids(members, from, most)
  local values = self.values
  for index = from, from + most - 1 do
    local member = members[index]
    if values[member] ~= GONE then return index - from end
    values[member] = AMONG_MANY
  end
  return most
end

-- Put members that were reserved, all with one score. Their values are lists in which one element counts up from `number`;
-- `before` and `after` are the packed elements around it.
function Space:put_many(members, from, count, before, number, after, score)
  local many = self.many or {}
  self.many, self.dirty = many, true
  many[#many + 1] = {members, from, count, before, number, after, score}
  if score > records.far then records.far = score end
end

-- The value of a member that was put with many others.
local function one_of_many(self, member)
  for _, batch in ipairs(self.many) do
    for index = 0, batch[3] - 1 do
      if batch[1][batch[2] + index] == member then
        self.values[member], self.scores[member] = unpacked(batch[4] .. pack(batch[5] + index) .. batch[6]), batch[7]
        return self.values[member]
      end
    end
  end
end

-- `prefetch` for what `scan` found.
function Space:prefetch_pairs(found)
  if #found < 3 then return end
  local members = {}
  for index, pair in ipairs(found) do members[index] = pair[2] end
  self:prefetch(members)
end

-- The value, or nil. In a bare space: 1 where it is there.
function Space:get(member)
  local value = self.values[member]
  if value == nil then
    if self.bare then return self:score(member) and 1 or nil end
    local raw = not self.cleared and call('HGET', self.key, spelt(self, member))
    if raw then
      value, self.there = unpacked(raw), true
    else
      value = GONE
    end
    self.values[member] = value
  end
  if value == GONE then return nil end
  if value == AMONG_MANY then return one_of_many(self, member) end
  return value
end

function Space:score(member)
  local score = self.scores[member]
  if score == nil then
    score = not self.cleared and tonumber(call('ZSCORE', self.order, spelt(self, member)) or nil) or false
    self.scores[member] = score
  end
  return score or nil
end

-- `touched` says what is to be written of a member: 1 its value, 2 its score, 3 both.

-- Set a value and leave the member's score.
function Space:set(member, value)
  if self.count and self:get(member) == nil then self.count = self.count + 1 end
  self.values[member] = value
  self:touch(member)
end

-- What `get` gave was changed in place.
function Space:touch(member)
  local touched = self.touched
  touched[member] = touched[member] and touched[member] > 1 and 3 or 1
  self.dirty = true
end

-- Set a value and a score.
function Space:put(member, value, score)
  local scores, touched = self.scores, self.touched
  local moves = scores[member] ~= score
  if self.bare then
    if self.count and not self:score(member) then self.count = self.count + 1 end
    if moves then touched[member] = 2 end
  else
    if self.count and self:get(member) == nil then self.count = self.count + 1 end
    self.values[member] = value
    touched[member] = (moves or (touched[member] or 0) > 1) and 3 or 1
  end
  self.dirty = true
  if moves then
    if self.moments and score > records.far then records.far = score end
    scores[member] = score
    if self.front then self:_insert(score, member) end
  end
end

-- Forget a member; one that is not there is no error.
function Space:delete(member)
  if self.bare then
    if self.count and self:score(member) then self.count = self.count - 1 end
    self.touched[member] = 2
  else
    if self.count and self:get(member) ~= nil then self.count = self.count - 1 end
    self.values[member] = GONE
    self.touched[member] = self.flat and 1 or 3
  end
  self.scores[member] = false
  self.dirty = true
end

-- A call begins: nothing is cached yet.
function begin_records()
  records = {seen = 0, wakes = {}, ids = {}, last = false, far = 0, life = 0, noticed = false, noticed_before = false, told = '', torn = false, states_there = nil,
    head = false}
  gate, used = kept[TAG], {}
  if gate then
    kept[TAG] = nil -- a call that fails on the way does not leave them empty
    gates_kept = gates_kept - 1
  else
    gate = {size = 0, line = 0, spaces = {}}
  end
  spaces = gate.spaces
  states, permits = space('states'), space('permits')
end

-- Call a function of which nothing is kept: it reads the records as this call has left them so far, and changes a copy. A
-- loss that it notices is told by the next command that decides.
function on_a_copy(look, ...)
  local its_records, its_gate, its_used, head = records, gate, used, {}
  for field, value in next, records.head do head[field] = value end
  records = {seen = records.seen, told = records.told, wakes = {}, ids = {}, fresh = {}, last = false, far = 0, life = records.life,
    noticed = records.noticed, torn = records.torn, states_there = records.states_there,
    forgets_line = records.forgets_line, head = head, below = spaces}
  gate, used = {size = 0, line = gate.line, spaces = {}}, {}
  spaces = gate.spaces
  states, permits = space('states'), space('permits')
  local fine, reply = pcall(look, ...)
  records, gate, used, spaces = its_records, its_gate, its_used, its_gate.spaces
  states, permits = space('states'), space('permits')
  if not fine then error(reply, 0) end
  return reply
end

-- The line's keys have this number in their names: see LINE.
function begin_line(number)
  if gate.line ~= number then
    spaces = {states = spaces.states, permits = spaces.permits}
    gate = {size = 2, line = number, spaces = spaces}
  end
end

-- Forget a whole space.
function drop(kind, name)
  local found = space(kind, name)
  found.values, found.scores, found.touched = {}, {}, {}
  found.front, found.count, found.stored, found.fetch, found.many = false, false, false, 2, false
  found.cleared, found.dirty, found.marks = true, true, false
end

-- The names of all spaces of a kind that is listed. Not for decisions.
function names(kind)
  if kind == 'line' then return {''} end
  for name, known in pairs(records.below and records.below[kind] or {}) do
    if known.used and known.dirty then space(kind, name) end
  end
  local listed = call('SMEMBERS', TAG .. ':names/' .. kind)
  local seen, found = {}, {}
  for _, name in ipairs(listed) do
    seen[name] = true
    local known = spaces[kind] and spaces[kind][name]
    if not (known and known.cleared and not next(known.touched)) then found[#found + 1] = name end
  end
  for name, known in pairs(spaces[kind] or {}) do
    if not seen[name] and next(known.touched) then found[#found + 1] = name end
  end
  table.sort(found)
  return found
end

-- Whether the states are there, if they were ever made.
function states_there()
  if records.states_there == nil then
    records.states_there = not find(records.head.ends, FIXED.states, 1, true) or call('HEXISTS', states.key, MARK) == 1
  end
  return records.states_there
end

function amend(changes)
  local head = records.head
  for field, value in pairs(changes) do head[field] = value end
end
