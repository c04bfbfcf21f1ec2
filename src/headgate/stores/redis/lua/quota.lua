-- The calendar quota: the port of limits/quota.py. Lua has no time zones: a zone's offsets come from the client, some 4
-- years at a time, and stay with the gate. A call that needs others is given up before anything is written, and sent again
-- with them.

function makers.quota()
  local Quota = {kind = 'quota', leased = false, confirmable = false, held = 3, room = false}
  local DAY, CHUNK = 86400, 2 ^ 27
  local LENGTHS = {minute = 60 * SECOND, hour = 3600 * SECOND}
  -- PERIODS of quota.py
  local ROUGHLY = {minute = 60 * SECOND, hour = 3600 * SECOND, day = DAY * SECOND, week = 7 * DAY * SECOND,
    month = 30 * DAY * SECOND, year = 365 * DAY * SECOND, ever = NEVER}

  -- Days since 1970 of a date of the Gregorian calendar, and back: years begin in March here.
  local function days_from_civil(year, month, day)
    if month <= 2 then year = year - 1 end
    local era = floor(year / 400)
    local of_era = year - era * 400
    local of_year = floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + day - 1
    return era * 146097 + of_era * 365 + floor(of_era / 4) - floor(of_era / 100) + of_year - 719468
  end

  local function civil_from_days(days)
    days = days + 719468
    local era = floor(days / 146097)
    local of_era = days - era * 146097
    local years = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
    local of_year = of_era - (365 * years + floor(years / 4) - floor(years / 100))
    local month = floor((5 * of_year + 2) / 153)
    month = month + (month < 10 and 3 or -9)
    return years + era * 400 + (month <= 2 and 1 or 0), month
  end

  -- {offset before, from, offset, from, offset …} in seconds: what a zone is ahead of UTC around a moment.
  local function offsets(zone, second)
    local name = format('%s %.0f', zone, floor(second / CHUNK))
    local found = space('zones'):get(name)
    if not found then error({need = {zone, floor(second / CHUNK)}}) end
    return found
  end

  local function offset_at(zone, second)
    if zone == 'UTC' then return 0 end
    local table_ = offsets(zone, second)
    for index = #table_ - 1, 2, -2 do
      if second >= table_[index] then return table_[index + 1] end
    end
    return table_[1]
  end

  -- The moment (µs) of a local midnight. What a clock shows twice is meant the first time; what it skips, by the old time.
  local function moment(zone, days)
    local wall = days * DAY
    if zone == 'UTC' then return wall * SECOND end
    local table_ = offsets(zone, wall)
    for index = #table_ - 1, 2, -2 do
      local before, after = table_[index - 1], table_[index + 1]
      if wall >= table_[index] + max(before, after) then return (wall - after) * SECOND end
    end
    return (wall - table_[1]) * SECOND
  end

  function Quota:made(row)
    self.per, self.zone, self.slack = row[9], row[10], row[11]
    self.start, self.stop = 0, 0
    return self
  end

  function Quota:largest(value)
    return value
  end

  -- Start and end of the period that `at` lies in.
  function Quota:period(at)
    if self.start <= at and at < self.stop then return self.start, self.stop end
    local per, zone = self.per, self.zone
    if per == 'ever' then
      self.start, self.stop = 0, NEVER
      return 0, NEVER
    end
    local second = floor(at / SECOND)
    local offset = offset_at(zone, second)
    local length = LENGTHS[per]
    if length then
      offset = offset * SECOND
      self.start = floor((at + offset) / length) * length - offset
      self.stop = self.start + length
      return self.start, self.stop
    end
    local first = floor((second + offset) / DAY)
    local next_
    if per == 'day' then
      next_ = first + 1
    elseif per == 'week' then
      first = first - (first + 3) % 7
      next_ = first + 7
    else
      local year, month = civil_from_days(first)
      if per == 'month' then
        first = days_from_civil(year, month, 1)
        next_ = month == 12 and days_from_civil(year + 1, 1, 1) or days_from_civil(year, month + 1, 1)
      else
        first, next_ = days_from_civil(year, 1, 1), days_from_civil(year + 1, 1, 1)
      end
    end
    local start, stop = moment(zone, first), moment(zone, next_)
    self.start, self.stop = start, stop
    return start, stop
  end

  -- The starts of the periods that count a grant at `at`.
  function Quota:_binding(at)
    local start, stop = self:period(at)
    if at >= stop - self.slack then return {start, stop} end
    if at < start + self.slack and start > 0 then
      local before = self:period(start - 1)
      return {before, start}
    end
    return {start}
  end

  local function _used(periods, start)
    for _, period in ipairs(periods) do
      if period[1] == start then return period[2] end
    end
    return 0
  end

  function Quota:earliest(now, member, cost, value, start)
    local state = states:get(member) or recovered(self, now, member, value)
    if not state then return start end
    if state[1] ~= 'quota' then kind_changed(member, state[1], 'quota') end
    local periods, held = state[2], state[3]
    if cost + held > value then
      local _, stop = self:period(start)
      return stop
    end
    local at = start
    for _ = 1, 2 * #periods + 2 do
      local full
      for _, first in ipairs(self:_binding(at)) do
        if _used(periods, first) + held + cost > value then full = first end
      end
      if not full then return at end
      local _, stop = self:period(full)
      -- The full period stops binding `slack` after its end; a neighbour binds until then as well.
      local _, ends = self:period(at)
      at = max(at + 1, full ~= ends and stop + self.slack or stop)
    end
    return at
  end

  function Quota:after(now, member, cost, value, ahead, size)
    local total = ahead * size + cost
    if total <= value then
      local at = self:earliest(now, member, total, value, now)
      if at <= now then return at end
    end
    -- Some of those ahead go now, then as many as fit at every reset.
    local most, state = fitting(value, size), states:get(member)
    local start = self:period(now)
    local free = value - (state and _used(state[2], start) + state[3] or 0)
    local here = min(most, max(0, floor(free / size + 1e-9)))
    local reset = self:earliest(now, member, max(cost, most * size), value, now)
    if reset <= now then
      local _, stop = self:period(now)
      reset = stop + self.slack
    end
    return reset + floor(max(0, ahead - here) / most) * ROUGHLY[self.per]
  end

  function Quota:pace(value)
    return ROUGHLY[self.per] / value
  end

  function Quota:charge(now, member, cost, value, at, lease)
    local state = states:get(member) or {'quota', {}, 0, 0}
    local used = {}
    for _, period in ipairs(state[2]) do
      local _, stop = self:period(period[1])
      if stop + self.slack > now then used[#used + 1] = {period[1], period[2]} end
    end
    for _, first in ipairs(self:_binding(at)) do
      local found
      for _, period in ipairs(used) do
        if period[1] == first then found = period end
      end
      if found then
        found[2] = found[2] + cost
      else
        used[#used + 1] = {first, cost}
      end
    end
    table.sort(used, is_before)
    local _, stop = self:period(used[#used][1])
    local until_ = max(state[4], stop + self.slack)
    states:put(member, {'quota', used, state[3], until_}, until_)
    return false
  end

  function Quota.until_(member, state)
    return state[4]
  end

  function Quota:refund(now, member, cost, value, at, confirmed)
    if cost < 0 then
      self:charge(now, member, -cost, value, at > now and at or now, NO_LEASE)
      return
    end
    local state = states:get(member)
    if not state or state[1] ~= 'quota' then return end
    local kept, binding = {}, self:_binding(at)
    for index, period in ipairs(state[2]) do
      local used = period[2]
      if period[1] == binding[1] or period[1] == binding[2] then used = max(0, used - cost) end
      kept[index] = {period[1], used}
    end
    states:set(member, {'quota', kept, state[3], state[4]})
  end

  function Quota:restamp(now, member, cost, value, at, sent)
    local charged, all = self:_binding(at), true
    for _, first in ipairs(self:_binding(sent)) do
      if first ~= charged[1] and first ~= charged[2] then all = false end
    end
    if all then return now end -- every period that may count it has it
    self:refund(now, member, cost, value, at, 0)
    self:charge(now, member, cost, value, sent, NO_LEASE)
    return self:earliest(now, member, 0, value, now)
  end

  function Quota:hold(now, member, cost, lease)
    local state = states:get(member)
    if not state then
      local _, stop = self:period(now)
      state = {'quota', {}, 0, stop + self.slack}
      states:put(member, state, state[4])
    end
    states:set(member, {'quota', state[2], max(0, state[3] + cost), state[4]})
  end

  function Quota:confirm() end

  function Quota:assume_used(now, member, value, lost)
    -- Nothing tells how much of the period's amount was spent: as much as the time that has passed of it.
    local start, stop = self:period(lost)
    local state = state_of(self, member)
    local spent = value * (lost - start) / (stop - start) - (state and _used(state[2], start) or 0)
    if spent > 0 then self:charge(lost, member, spent, value, lost, NO_LEASE) end
  end

  function Quota.rough_use(now, member, state)
    local last = state[2][#state[2]]
    return (last and state[4] > now and last[2] or 0) + state[3]
  end

  function Quota:describe(now, member, value)
    local start, stop = self:period(now)
    local state = state_of(self, member)
    local used = state and _used(state[2], start) + state[3] or 0
    local free_in = self:earliest(now, member, min(1, value), value, now) - now
    local to_come = 0
    for _, period in ipairs(state and state[2] or {}) do
      if period[1] >= stop then to_come = to_come + period[2] end
    end
    return usage_of(self, member, used, value, free_in, stop < NEVER and stop - now or nil, nil, to_come)
  end

  return Quota
end
