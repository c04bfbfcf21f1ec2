-- Writing: once per call, at its end.

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

-- Write one member. Returns whether its value was set, whether its score was, and whether anything was deleted.
--
-- The score goes first: an order is often empty, and while a slot moves to another master, a command on a key that is
-- not there cuts the call short. A value without its score would be taken for lost.
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

-- Write several members, with one command of each sort.
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

-- Write what `put_many` was given; before the members themselves, since one of them may have been changed after that.
local function write_batches(self)
  for _, batch in ipairs(self.many) do
    local members, from, count, before, number, after = batch[1], batch[2], batch[3], batch[4], batch[5], batch[6]
    local set, place, score = {}, {}, format('%.0f', batch[7])
    for index = 0, count - 1 do
      local member, at = members[from + index], 2 * index + 1
      place[at], place[at + 1] = score, member
      set[at], set[at + 1] = member, before .. pack(number + index) .. after
    end
    call('ZADD', self.order, unpack(place))
    call('HSET', self.key, unpack(set))
  end
end

-- A space that lives as long as the gate is given an expiry when it is made, and with the head from then on.
local function keep_fixed(self, letter, life, set, placed, gone)
  local head = records.head
  local known = find(head.ends, letter, 1, true)
  if gone and known and call('EXISTS', self.key, self.order) < (self.flat and 1 or 2) then
    -- It was emptied: the next write makes a new key.
    head.ends = head.ends:gsub(letter, '')
    known = nil
  end
  if (set or placed) and not known then
    -- It expires when the head does, or one of them would be taken for lost.
    life = life - floor((head.now - head.fresh) / 1000)
    if self.kind == 'states' then call('HSET', self.key, MARK, NOTHING) end
    call('PEXPIRE', self.key, life)
    if not self.flat then call('PEXPIRE', self.order, life) end
    head.ends = head.ends .. letter
  end
end

-- `life` is for how many milliseconds a key is kept after its last write; nil for ever.
function Space:write(life, due)
  local cleared, set, placed, gone = self.cleared, false, false, false
  if self.many then write_batches(self) end
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

-- Write all that has changed, and empty the caches. Spaces that were dropped are unlinked first, all of them at once.
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
    if one.dirty then one:write(one.kind ~= 'overrides' and one.kind ~= 'terms' and life or nil, due) end
    empty(one)
  end
  if gate.size <= SPACES then
    if gates_kept >= GATES then kept, gates_kept = {}, 0 end
    kept[TAG] = gate
    gates_kept = gates_kept + 1
  end
end
