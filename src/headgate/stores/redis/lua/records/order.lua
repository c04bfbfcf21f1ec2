-- The order of a space: its first member, its members from a score on, how many there are.

-- The lowest score and its member; nil where there is none.
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

-- Read the first few of the order into `front`, or the `whole` of it; members that moved since are passed over.
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
  -- Behind what was read: it is read when that has been used up.
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
    local moved = 0 -- so many of those that are read may have another score by now
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

-- Returns one after the other from `since` on: score and value. Reads a few at a time; the space must not change meanwhile.
function Space:walk(since)
  local found, at, few = {}, 0, 16
  return function()
    at = at + 1
    if at > #found then
      if found.last then return nil end
      found = self:scan(since, few)
      found.last = #found < few
      if #found == 0 then return nil end
      self:prefetch_pairs(found)
      since, at, few = found[#found][1] + 1, 1, min(few * 4, 1024)
    end
    return found[at][1], self:get(found[at][2])
  end
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
