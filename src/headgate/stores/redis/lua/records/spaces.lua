-- Records: the state of one gate, as records.py has it. Read when asked for, kept for this call, written once at its end.
--
-- Keys, all of one gate and one slot (KEYS[1] is hg:{<gate>}):
--
--   hg:{gate}                   HASH  the head: seq, now, and the rest of it (main.lua)
--   hg:{gate}:<kind>            HASH  member → value (MessagePack)
--   hg:{gate}:<kind>:z          ZSET  the same members in order: a moment in µs, a tag, an arrival
--   hg:{gate}:<kind>/<name>     the same for spaces that have a name: leases/in_flight, windows/rpm, lane/0.0.org=acme …
--   hg:{gate}:names/<kind>      SET   the names of a kind's spaces, where somebody lists them
--
-- Kinds in BARE have no values: only the ZSET. Kinds in FLAT have no order: only the HASH. None is `false` inside arrays.
--
-- Nothing is written before the whole batch is decided: a call that fails on the way has changed nothing.
--
-- A server that evicts may take one key and leave the others. So `states` and every `leases/…` have a member more, MARK,
-- from when they are made: where that is missing, they are not empty but gone. Of a line that does not fit together any
-- more nothing can be made: it is forgotten, which is to say that it goes on under other keys (LINE).

local BARE = {lane = true, ready = true, parked = true, due = true, calls = true, of = true, young = true}
local FLAT = {tickets = true, lanes = true, line = true, policies = true, assumed = true, zones = true}
local NUMERIC = {windows = true, promised = true}
-- Kinds whose scores are moments: whatever they name must not expire before.
local MOMENTS = {states = true, windows = true, promised = true, leases = true, permits = true}
-- Spaces that are refreshed with the head, not with every write: see `main.lua`. The head knows by these letters which of
-- them have been given their end; what a person has set has none.
local FIXED = {states = 's', permits = 'p', policies = 'o', zones = 'z', assumed = 'a', overrides = ''}
local LISTED = {leases = true, windows = true, promised = true}
-- Spaces whose keys, once they are there, need not be given another end by every write: the line's by the name of the kind
-- alone are refreshed with the head too, leases once a day (concurrency.lua).
local LASTING = {leases = true, tickets = true, lanes = true, line = true, calls = true, sessions = true, due = true,
  young = true}
-- What line.lua keeps.
local LINE = {tickets = true, lanes = true, line = true, lane = true, ready = true, parked = true, due = true, calls = true,
  sessions = true, of = true, young = true, rest = true}

-- No limit and no id is called so; and its value is nil in MessagePack, should somebody read it.
local MARK, NOTHING = '', '\192'

-- What is known to be absent; and what is put with many others, see `put_many`.
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

-- What all spaces of a kind have in common, and what a new one begins with: looked up there, not made for each.
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

-- A library keeps the spaces of the last few gates, empty: to empty one costs less than to make it. `spaces` has those of
-- this gate, by kind and name; `used` those that this call has to do with.
local GATES, SPACES, FEW = 16, 48, 16
local kept, gates_kept, gate, spaces, used = {}, 0, nil, nil, nil

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
  end
  if not found.used then
    found.used = true
    used[#used + 1] = found
    if kind == 'leases' then found:know() end
  end
  return found
end

-- What is left of a table when all is taken out of it.
local function emptied(table_)
  local count = 0
  for key in next, table_ do
    count = count + 1
    if count > FEW then return {} end
    table_[key] = nil
  end
  return table_
end

-- As it was made, as far as it matters: what says something only beside `front` or `dirty` may stay.
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

-- A member as Redis spells it. Not `..`, which keeps 14 digits of a number.
local function spelt(self, member)
  return self.numeric and type(member) == 'number' and format('%.0f', member) or member
end

-- Have many members read in one go: those that were not looked at before.
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

-- The ids that this call is about: several are read in one go, and those that were made for it cannot be there.
function Space:know()
  local ids, values = records.ids, self.values
  if #ids > 1 then self:prefetch(ids) end
  for _, id in ipairs(records.fresh) do values[id] = GONE end
end

-- How many of these members, from one on, are known to be absent. They count as present from then on, for `put_many`.
function Space:claim(members, from, most)
  local values = self.values
  for index = from, from + most - 1 do
    local member = members[index]
    if values[member] ~= GONE then return index - from end
    values[member] = AMONG_MANY
  end
  return most
end

-- Put members that were claimed, all in one place. Of their values, which are lists, one element counts up from `number`; what
-- stands before and after it is packed.
function Space:put_many(members, from, count, before, number, after, score)
  local many = self.many or {}
  self.many, self.dirty = many, true
  many[#many + 1] = {members, from, count, before, number, after, score}
  if score > records.far then records.far = score end
end

-- The value of one of those.
local function one_of_many(self, member)
  for _, crowd in ipairs(self.many) do
    for index = 0, crowd[3] - 1 do
      if crowd[1][crowd[2] + index] == member then
        self.values[member], self.scores[member] = unpacked(crowd[4] .. pack(crowd[5] + index) .. crowd[6]), crowd[7]
        return self.values[member]
      end
    end
  end
end

-- The same as `prefetch` for what `scan` found.
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

-- `touched` has what is to be written of a member: 1 its value, 2 its place, 3 both.

-- Set a value and leave the member's place in the order.
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

-- Set a value, and (re)place the member in the order.
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

-- The lowest: score, member; nil where there is none.
function Space:first()
  while true do
    local front = self.front
    if front then
      local at = self.at
      local pair = front[at]
      while pair do
        local score = self.scores[pair[2]]
        if score == nil or score == pair[1] then
          self.at = at
          return pair[1], pair[2]
        end
        at = at + 1
        pair = front[at]
      end
      self.at = at
      if self.whole then return nil end
    end
    self:_fetch()
  end
end

-- `front` has the first few of the order, or the `whole` of it; those that moved since are passed over.
function Space:_fetch()
  -- Two at first: that also tells whether there are any when the first has gone.
  local fetch = self.fetch
  self.fetch = fetch == 2 and 8 or fetch * 8
  local front, last = {}, nil
  local raw = self.cleared and {} or call('ZRANGE', self.order, 0, fetch - 1, 'WITHSCORES')
  for index = 1, #raw, 2 do
    local member = self.numeric and tonumber(raw[index]) or raw[index]
    last = {tonumber(raw[index + 1]), member}
    if (self.touched[member] or 0) < 2 then front[#front + 1] = last end
  end
  if last then self.ordered = true end
  self.whole = #raw < 2 * fetch
  self.last = last
  self.front, self.at = front, 1
  for member, how in pairs(self.touched) do
    local score = how > 1 and self.scores[member]
    if score then self:_insert(score, member) end
  end
end

function Space:_insert(score, member)
  local pair, front = {score, member}, self.front
  -- Behind what was read: it is found when that has been used up.
  if not self.whole and not is_before(pair, self.last) then return end
  local at = #front + 1
  while at > 1 and is_before(pair, front[at - 1]) do at = at - 1 end
  table.insert(front, at, pair)
  if at < self.at then self.at = at end
end

-- {score, member} in order, from `since` on: all, or the first `most`.
function Space:scan(since, most)
  local found, touched, raw = {}, self.touched, {}
  if self.cleared then
    raw = {}
  elseif most then
    local moved = 0 -- so many of those that are read may be elsewhere by now
    for _, how in pairs(touched) do
      if how > 1 then moved = moved + 1 end
    end
    raw = call('ZRANGEBYSCORE', self.order, since or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, most + moved)
  else
    raw = call('ZRANGEBYSCORE', self.order, since or '-inf', '+inf', 'WITHSCORES')
  end
  for index = 1, #raw, 2 do
    local member = self.numeric and tonumber(raw[index]) or raw[index]
    if (touched[member] or 0) < 2 then found[#found + 1] = {tonumber(raw[index + 1]), member} end
  end
  local unsorted = false
  for member, how in pairs(touched) do
    local score = how > 1 and self.scores[member]
    if score and (not since or score >= since) then
      found[#found + 1] = {score, member}
      unsorted = true
    end
  end
  if unsorted then table.sort(found, is_before) end
  if most then
    for index = #found, most + 1, -1 do found[index] = nil end
  end
  return found
end

-- How many leases are stored. Where there is not even the mark, they were never made, or are gone.
function Space:look()
  if not self.stored then
    local count = self.cleared and 0 or call('HLEN', self.key)
    self.bereft = count == 0
    if count > 0 then
      count = count - 1
      self.there, self.ordered = true, count > 0
    end
    self.stored = count
  end
  return self.stored
end

function Space:len()
  if not self.count then
    local bare, count = self.bare, 0
    if self.kind == 'leases' then
      count = self:look()
    elseif not self.cleared then
      count = bare and call('ZCARD', self.order) or not bare and call('HLEN', self.key)
    end
    for member in pairs(self.touched) do
      local there, here = false, bare and self.scores[member] or not bare and self.values[member] ~= GONE
      if not self.cleared then
        there = bare and call('ZSCORE', self.order, spelt(self, member))
          or not bare and call('HEXISTS', self.key, spelt(self, member)) == 1
      end
      count = count + (here and 1 or 0) - (there and 1 or 0)
    end
    self.count = count
  end
  return self.count
end

-- A call begins: nothing is known yet.
function begin_records()
  records = {seen = 0, wakes = {}, ids = {}, fresh = {}, last = false, far = 0, life = 0, noticed = false, torn = false, states_there = nil,
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

-- The line is under the keys of this number: see LINE.
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

-- --- writing back ---------------------------------------------------------------------------------------------------

local function send(command, key, arguments)
  local count = #arguments
  if count == 0 then return 0 end
  if count <= 4000 then return call(command, key, unpack(arguments)) end
  local changed = 0
  for from = 1, count, 4000 do
    changed = changed + call(command, key, unpack(arguments, from, min(from + 3999, count)))
  end
  return changed
end

-- One member. Returns whether its value was set, whether it was placed, and whether anything was taken away.
--
-- It is placed before it is set: an order is often empty, and while a slot moves to another master, a command on a key that
-- is not there cuts the call short. A row without its place would be taken for lost.
local function write_one(self, member, how)
  local name = self.numeric and spelt(self, member) or member
  local set, placed, gone = false, false, false
  local score = how > 1 and self.scores[member]
  if score then
    call('ZADD', self.order, score, name)
    placed = true
  end
  if how ~= 2 then
    local value = self.values[member]
    if value == GONE then
      call('HDEL', self.key, name)
      gone = true
    else
      call('HSET', self.key, name, self.packed and self.packed[member] or pack(value))
      set = true
    end
  end
  if how > 1 and not score then
    call('ZREM', self.order, name)
    gone = true
  end
  return set, placed, gone
end

-- Several members, with one command of each sort.
local function write_many(self)
  local numeric, values, scores, packed = self.numeric, self.values, self.scores, self.packed
  local set, sets, unset, place, places, unplace = {}, 0, {}, {}, 0, {}
  for member, how in pairs(self.touched) do
    local name = numeric and spelt(self, member) or member
    if how ~= 2 then
      local value = values[member]
      if value == GONE then
        unset[#unset + 1] = name
      else
        set[sets + 1], set[sets + 2] = name, packed and packed[member] or pack(value)
        sets = sets + 2
      end
    end
    if how > 1 then
      local score = scores[member]
      if score then
        place[places + 1], place[places + 2] = score, name
        places = places + 2
      else
        unplace[#unplace + 1] = name
      end
    end
  end
  send('ZADD', self.order, place)
  send('HSET', self.key, set)
  if not self.cleared or self.many then
    send('HDEL', self.key, unset)
    send('ZREM', self.order, unplace)
  end
  return sets > 0, places > 0, #unset + #unplace > 0
end

-- What `put_many` was given: before what may have become of one of them since.
local function write_crowds(self)
  for _, crowd in ipairs(self.many) do
    local members, from, count, before, number, after = crowd[1], crowd[2], crowd[3], crowd[4], crowd[5], crowd[6]
    local set, place, score = {}, {}, format('%.0f', crowd[7])
    for index = 0, count - 1 do
      local member, at = members[from + index], 2 * index + 1
      place[at], place[at + 1] = score, member
      set[at], set[at + 1] = member, before .. pack(number + index) .. after
    end
    call('ZADD', self.order, unpack(place))
    call('HSET', self.key, unpack(set))
  end
end

-- What lives as long as the gate is given its end when it is made, and with the head from then on.
local function keep_fixed(self, letter, life, set, placed, gone)
  local head = records.head
  local known = find(head.ends, letter, 1, true)
  if gone and known and call('EXISTS', self.key, self.order) < (self.flat and 1 or 2) then
    -- It was emptied: what is put there next is a new key.
    head.ends = head.ends:gsub(letter, '')
    known = nil
  end
  if (set or placed) and not known then
    -- It ends when the head does, or one of them would be taken for lost.
    life = life - floor((head.now - head.fresh) / 1000)
    if self.kind == 'states' then call('HSET', self.key, MARK, NOTHING) end
    call('PEXPIRE', self.key, life)
    if not self.flat then call('PEXPIRE', self.order, life) end
    head.ends = head.ends .. letter
  end
end

-- `life` is for how many milliseconds a key is kept that nobody touches; nil for ever.
function Space:write(life, due)
  local cleared, set, placed, gone = self.cleared, false, false, false
  if self.many then write_crowds(self) end
  local member, how = next(self.touched)
  if member ~= nil then
    if cleared or next(self.touched, member) ~= nil then
      set, placed, gone = write_many(self)
    else
      set, placed, gone = write_one(self, member, how)
    end
  end
  if self.many then set, placed = true, true end
  if self.marks then
    call('HSET', self.key, MARK, NOTHING)
    set = true
  end
  if life then
    local letter = FIXED[self.kind]
    if letter then
      keep_fixed(self, letter, life, set, placed, gone or cleared)
    else
      local lasting = self.lasting and not (due or cleared or self.renewed)
      if set and not (lasting and self.there) then call('PEXPIRE', self.key, life) end
      if placed and not (lasting and self.ordered) then call('PEXPIRE', self.order, life) end
    end
  end
  if LISTED[self.kind] and (self.enlist or cleared) then
    local listing = TAG .. ':names/' .. self.kind
    if self.enlist then
      call('SADD', listing, self.name)
      if life then call('PEXPIRE', listing, life) end
    else
      call('SREM', listing, self.name)
    end
  end
end

-- All that has changed; then nothing is known any more. What was forgotten goes first, all of it at once.
function write_records(life, due)
  local unlinked = {}
  for index = 1, #used do
    local one = used[index]
    if one.flat and one.count == 0 and one.dirty then one.cleared, one.touched = true, {} end -- the last has gone
    if one.cleared then
      if not one.bare then unlinked[#unlinked + 1] = one.key end
      if not one.flat then unlinked[#unlinked + 1] = one.order end
    end
  end
  for from = 1, #unlinked, 4000 do call('UNLINK', unpack(unlinked, from, min(from + 3999, #unlinked))) end
  for index = 1, #used do
    local one = used[index]
    -- What a person has set stays until that person says otherwise.
    if one.dirty then one:write(one.kind ~= 'overrides' and life or nil, due) end
    empty(one)
  end
  if gate.size <= SPACES then
    if gates_kept >= GATES then kept, gates_kept = {}, 0 end
    kept[TAG] = gate
    gates_kept = gates_kept + 1
  end
end
