-- The exact sliding window: the port of limits/window.py, where its state and its slots are explained.

function makers.window()
  local Window = {kind = 'window', leased = false, confirmable = true, held = 4}
  local WORTH_CONFIRMING, STEPS_AFTER_LOSS, ROUNDING, FAR = 0.25, 50, 1e-6, 20

  function Window:made(row)
    self.per, self.slack = row[9], row[10]
    self.grid = floor(self.per / 1000)
    self.span = ceil((self.per + self.slack) / self.grid) * self.grid
    return self
  end

  function Window:largest(value)
    return value
  end

  -- The moment on the grid at which what was counted at `at` stops counting.
  function Window:_stops(at, span)
    return ceil((at + span) / self.grid) * self.grid
  end

  function Window:earliest(now, member, cost, value, start)
    local state = states:get(member) or recovered(self, now, member, value)
    if not state then return start <= now and start or self:_stops(start, 0) end
    if state[1] ~= 'window' then kind_changed(member, state[1], 'window') end
    local total, first, held, promised = state[2], state[3], state[4], state[6]
    if total + held + cost <= value and start <= now and not promised then return start end
    if first <= now then total, promised = self:_prune(now, member, value) end
    if promised or start > now then return self:_among(now, member, cost, value - held, start) end
    total = total + (held + cost - value)
    if total <= 0 then return start end
    -- Mostly the first few slots tell; there are about a thousand.
    local slots, most = self:_slots(member), 16
    while true do
      local found, left = slots:scan(nil, most), total
      slots:prefetch_pairs(found)
      for _, pair in ipairs(found) do
        local stops = pair[1]
        left = left - (slots:get(stops) or 0)
        if left <= 0 then return stops > start and stops or start end
      end
      if #found < most then
        if left - (held + cost - value) > self.limit * ROUNDING then -- more counts than there is
          self:_count_anew(now, member, value)
          return self:earliest(now, member, cost, value, start)
        end
        break
      end
      most = most * 16
    end
    -- What called tickets hold has no end of its own: it is taken or given back within a claim.
    return self:_stops(now, self.span)
  end

  function Window:after(now, member, cost, value, ahead, size)
    -- Of asks that fill the window together each goes when the one as many before it stops counting.
    local most = fitting(value, size)
    local rounds = floor(ahead / most)
    local rest = ahead - rounds * most
    if rounds >= FAR then return now + rounds * self.span + floor(rest * self.span / most) end
    local at = self:earliest(now, member, max(cost, min(value, rest * size + cost)), value, now)
    return rounds > 0 and self:_stops(at, self.span) + (rounds - 1) * self.span or at
  end

  -- Whether so many are ahead that `after` is an estimate.
  function Window:is_far(value, ahead, size)
    return ahead >= FAR * fitting(value, size)
  end

  function Window:pace(value)
    return self.span / value
  end

  local LOOKED, HARDLY, FRONTS = 2000, 1e-9, 8

  -- Each at, counted, least, since; none where an earlier version has been here: see `_fronts` of window.py.
  local function fronts_of(slots)
    local hint = slots:get('hint')
    if not hint or hint[2] ~= NEVER then return {} end
    local fronts = slots:get('fronts')
    return fronts and fronts[#fronts][1] + 1 == hint[1] and fronts or {}
  end

  -- What is charged at `at` counts at every front between that and the moment at which it stops.
  local function charged(slots, at, stops, cost)
    local fronts, fresh = fronts_of(slots), {}
    if not fronts[1] or at > fronts[#fronts][1] or fronts[1][1] >= stops then return end
    for index, front in ipairs(fronts) do
      local counts = at <= front[1] and front[1] < stops
      fresh[index] = counts and {front[1], front[2] + cost, front[3], front[4]} or front
    end
    slots:set('fronts', fresh)
  end

  -- Units that would have counted until `stops` count no longer, so that more may fit before it.
  local function given_back(slots, stops)
    local fresh = {}
    for _, front in ipairs(fronts_of(slots)) do
      if front[1] >= stops then fresh[#fresh + 1] = {front[1], front[2], front[3], max(front[4], stops)} end
    end
    if fresh[1] then slots:set('fronts', fresh) else slots:delete('hint') end
  end

  function Window:charge(now, member, cost, value, at, lease)
    -- A promise lies on the grid, so that its slot tells when it begins as well as when it stops.
    local stops = ceil((at + self.span) / self.grid) * self.grid
    local state = states:get(member)
    if not state then
      states:put(member, {'window', cost, stops, 0, stops, at > now, stops, cost}, stops)
      return cost >= value * WORTH_CONFIRMING
    end
    local total = state[2] + cost
    if stops == state[7] then
      if state[6] then charged(space('windows', member), at, stops, cost) end
      state[2], state[8] = total, state[8] + cost
      states:touch(member)
      return total >= value * WORTH_CONFIRMING
    end
    local first, held, until_, promised, current, units = state[3], state[4], state[5], state[6], 0, 0
    local slots = self:_slots(member)
    if at > now or promised then
      promised = true
      charged(slots, at, stops, cost)
    end
    if stops < until_ then
      -- Not the newest slot: what is confirmed, or goes before a promise.
      slots:put(stops, cost + (slots:get(stops) or 0), stops)
    else
      current, units = stops, cost
      until_ = stops
    end
    if stops > records.far then records.far = stops end
    states:set(member, {'window', total, stops < first and stops or first, held, until_, promised, current, units})
    return total >= value * WORTH_CONFIRMING
  end

  -- How many such asks, at most so many, could go now one after the other; and whether confirming those would be worth it.
  function Window:room(now, member, cost, value, most)
    local state = states:get(member)
    if not state or state[1] ~= 'window' or state[6] then return 0 end
    local total, held, enough = state[2], state[4], value * WORTH_CONFIRMING
    local worth = total + cost >= enough
    for count = 0, most - 1 do
      if total + held + cost > value then return count, worth end
      total = total + cost
      if (total >= enough) ~= worth then return count, worth end
    end
    return most, worth
  end

  -- Charge so many, for which there is room.
  function Window:take(now, member, cost, value, count)
    self:charge(now, member, cost, value, now, NO_LEASE)
    local state = states:get(member)
    local total, units = state[2], state[8]
    for _ = 2, count do
      if state[7] == 0 then
        self:charge(now, member, cost, value, now, NO_LEASE) -- not the newest slot
      else
        total, units = total + cost, units + cost
      end
    end
    if state[7] ~= 0 then state[2], state[8] = total, units end
  end

  -- All slots: the open one is put with the others.
  function Window:_slots(member)
    local slots = space('windows', member)
    local state = states:get(member)
    local current = state[7]
    if current ~= 0 then
      slots:put(current, state[8] + (slots:get(current) or 0), current)
      states:set(member, {'window', state[2], state[3], state[4], state[5], state[6], 0, 0})
    end
    return slots
  end

  local function more()
    function Window:refund(now, member, cost, value, at, confirmed)
      local state = states:get(member)
      if cost < 0 then
        -- It cost more than was charged: that counts from when it was charged, also beyond the limit.
        self:charge(now, member, -cost, value, min(at, now), NO_LEASE)
      elseif state and state[1] == 'window' then
        local stops = self:_stops(at, self.span)
        if confirmed ~= 0 then stops = min(stops, self:_stops(confirmed, self.per)) end
        self:_move(now, value, member, cost, stops, nil)
      end
    end

    function Window:restamp(now, member, cost, value, at, sent)
      local state, moved = state_of(self, member) or recovered(self, now, member, value), 0
      if state then
        if state[3] <= now then self:_prune(now, member, value) end
        moved = self:_move(now, value, member, cost, self:_stops(at, self.span), nil)
      end
      self:charge(now, member, cost, value, sent, NO_LEASE)
      if cost - moved <= cost * ROUNDING then return now end -- the same charge, counted for longer
      -- It had stopped counting, so others may have been granted since what it stood for.
      return self:earliest(now, member, 0, value, now)
    end

    function Window:confirm(now, member, cost, value, at)
      local state = states:get(member)
      if not state or at > now then return end
      local was, stops = self:_stops(at, self.span), self:_stops(now, self.per)
      if stops < was and state[1] == 'window' then self:_move(now, value, member, cost, was, stops) end
    end

    function Window.until_(member, state)
      return state[5]
    end

    -- Units that stop at `was` stop at `to` instead, or are given back. Returns how many of them still counted.
    function Window:_move(now, value, member, cost, was, to)
      local slots = space('windows', member)
      if not self:_is_whole(slots, member) then
        self:_count_anew(now, member, value)
        return 0
      end
      local state = states:get(member)
      local total, first, held, until_, promised = state[2], state[3], state[4], state[5], state[6]
      local current, filled, moved = state[7], state[8], cost
      if was == current and cost <= filled then
        filled = filled - cost
        if filled == 0 then current = 0 end
      else
        if was == current then
          slots = self:_slots(member)
          current, filled = 0, 0
        end
        local units = slots:get(was)
        if not units then return 0 end -- stopped counting, was reset, or was confirmed before
        if units <= cost then
          moved = units
          slots:delete(was)
        else
          slots:set(was, units - moved)
        end
      end
      if not to then
        total = total - moved
      else
        slots:put(to, moved + (slots:get(to) or 0), to)
        first = min(first, to)
      end
      if promised then given_back(slots, was) end
      if current == 0 and not slots:first() then total = 0 end -- whatever rounding left
      states:set(member, {'window', total, first, held, until_, promised, current, filled})
      return moved
    end

    function Window:hold(now, member, cost, lease)
      local state = states:get(member)
      if not state then
        state = {'window', 0, NEVER, 0, now, false, 0, 0}
        states:put(member, state, now + self.span)
      end
      states:set(member, {state[1], state[2], state[3], max(0, state[4] + cost), state[5], state[6], state[7], state[8]})
    end

    function Window:assume_used(now, member, value, lost)
      if state_of(self, member) then self:_prune(now, member, value) end
      local state = states:get(member)
      local missing = value - (state and state[2] or 0)
      if missing > 0 then
        local part = missing / STEPS_AFTER_LOSS
        for step = 1, STEPS_AFTER_LOSS do
          local at = lost + floor(self.span * (step - STEPS_AFTER_LOSS) / STEPS_AFTER_LOSS)
          if at + self.span > now then self:charge(now, member, part, value, at, NO_LEASE) end
        end
      end
    end

    function Window.rough_use(now, member, state)
      return (state[5] > now and state[2] or 0) + state[4]
    end

    function Window:describe(now, member, value)
      local state = state_of(self, member)
      if not state then return usage_of(self, member, 0, value, 0, 0) end
      local total, promised = self:_prune(now, member, value)
      local free_in = self:earliest(now, member, min(1, value), value, now) - now
      local to_come = 0
      if promised then
        local slots = self:_slots(member)
        local found = slots:scan(now + self.span + 1) -- what stops then begins after now
        slots:prefetch_pairs(found)
        for _, pair in ipairs(found) do to_come = to_come + slots:get(pair[1]) end
      end
      local used = max(0, total + state[4] - to_come)
      return usage_of(self, member, used, value, free_in, total > 0 and state[5] - now or 0, nil, to_come)
    end

    -- Whether all that counts is in the slots, or in the one that is being filled. The first is where it should be, unless
    -- it was given back or they are gone.
    function Window:_is_whole(slots, member)
      local state = states:get(member)
      local in_order = slots:first() or NEVER
      local first = state[7] ~= 0 and min(in_order, state[7]) or in_order
      if first == state[3] and (in_order == NEVER or slots:get(in_order)) then return true end
      local found, left = slots:scan(), state[2] - state[8]
      slots:prefetch_pairs(found)
      for _, pair in ipairs(found) do
        local units = slots:get(pair[2])
        if not units then return false end
        left = left - units
      end
      if left > self.limit * ROUNDING then return false end
      state[3] = first
      states:touch(member)
      return true
    end

    -- Slots are gone that counted. Returns what counts instead, and whether any of it is promised.
    function Window:_count_anew(now, member, value)
      local held = states:get(member)[4]
      drop('windows', member)
      states:set(member, {'window', 0, NEVER, held, now, false, 0, 0})
      local state = used_up(self, now, member, value)
      return state[2], state[6]
    end

    -- Slots that have stopped counting go. Returns what still counts, and whether any of it is promised.
    function Window:_prune(now, member, value)
      local state = states:get(member)
      local slots = (state[6] or state[7] <= now) and self:_slots(member) or space('windows', member)
      if not self:_is_whole(slots, member) then return self:_count_anew(now, member, value) end
      state = states:get(member)
      local total, until_, promised, current = state[2], state[5], state[6], state[7]
      local first = slots:first()
      while first and first <= now do
        total = total - slots:get(first)
        slots:delete(first)
        first = slots:first()
      end
      if not first then
        promised = false
        if current == 0 then total = 0 end -- with the last slot goes whatever rounding left
        drop('windows', member)
      elseif promised and until_ - self.span <= now then
        promised = false
        slots:delete('hint')
      end
      total = max(total, 0)
      first = first or (current ~= 0 and current) or NEVER
      states:set(member, {'window', total, first, state[4], until_, promised, current, state[8]})
      return total, promised
    end

    -- --- promises: slots that begin in the future ----------------------------------------------------------------------

    function Window:_among(now, member, cost, value, start)
      if cost > value then return NEVER end
      local slots = self:_slots(member)
      if not self:_is_whole(slots, member) then
        self:_count_anew(now, member, value)
        slots = self:_slots(member)
      end
      -- A promise lies on the grid, so that its slot tells exactly when it begins; only the present need not.
      local at = start <= now and start or self:_stops(start, 0)
      local walk = self:_walk(slots, at, cost, value, start <= now)
      local best = walk:run()
      if not best then
        -- Too many were looked at. After the last promise nothing is in its way: no later than if it stood in line.
        local last = max(at, states:get(member)[5] - self.span)
        best = self:_walk(slots, last, cost, value, false):leave()
      end
      walk:remember()
      return best
    end

    local Walk = {}
    Walk.__index = Walk

    function Window:_walk(slots, at, cost, value, covers)
      local walk = setmetatable({slots = slots, span = self.span, cost = cost, value = value, fronts = fronts_of(slots),
        covers = covers, least = 0, reach = at - 1, since = at, bad = nil, counted = 0, at = at}, Walk)
      -- The last of those that tell where this cost does not fit.
      for _, front in ipairs(walk.fronts) do
        if front[3] <= cost then walk.front = front end
      end
      if walk:is_known(at) then
        walk:jump(at)
        return walk
      end
      local ends, counts = self:_stops(at, self.span), slots:walk(at + 1)
      local stops, units = counts()
      while stops and stops <= ends do
        walk.counted = walk.counted + units
        stops, units = counts()
      end
      walk:go_to(at, ends)
      return walk
    end

    function Walk:go_to(at, ends)
      self.at, self.entering, self.leaving = at, self.slots:walk(ends + 1), self.slots:walk(at + 1)
      self.coming, self.coming_units = self.entering()
      self.going, self.going_units = self.leaving()
    end

    -- Whether the front tells that it fits nowhere from `at` to there.
    function Walk:is_known(at)
      local front = self.front
      return front and front[4] <= at and at < front[1]
    end

    -- The moment; nil where more than LOOKED slots would have to be looked at.
    function Walk:run()
      local best, looked = nil, 0
      if not self.bad and self.counted + self.cost <= self.value then best = self.at end
      while looked < LOOKED do
        looked = looked + 1
        if not best and self:is_known(self.at) then self:jump(self.at) end
        local begins = self.coming and self.coming - self.span or NEVER
        if best and begins >= best + self.span then return best end
        local stays = not self.going or self.going > begins
        if not best and stays and begins == NEVER then return self.at end -- nothing counts any more
        if best or stays then
          self.at = begins
          while self.going and self.going <= begins do
            self:lose()
            looked = looked + 1
          end
        else
          self.at = self.going
          self:lose()
        end
        local entered = begins == self.at
        if entered then
          self.counted = self.counted + self.coming_units
          self.coming, self.coming_units = self.entering()
        end
        if self.counted + self.cost > self.value then
          best = nil
          if entered then self:refuse() end
        elseif not best then
          best = self.at
        end
      end
      return nil
    end

    -- The first moment at which it fits, where no slot begins later.
    function Walk:leave()
      while self.going and self.counted + self.cost > self.value do
        self.at = self.going
        self:lose()
      end
      return self.at
    end

    -- The next slot stops counting.
    function Walk:lose()
      self.counted = self.counted - self.going_units
      self.going, self.going_units = self.leaving()
      -- With the last slot that has begun goes whatever rounding left.
      if not self.going or (self.coming and self.going == self.coming) then self.counted = 0 end
    end

    -- It does not fit where this slot begins, nor within a span before that.
    function Walk:refuse()
      local left = self.value - self.counted + self.value * HARDLY
      if self.reach >= self.at - self.span then
        self.least = max(self.least, min(self.cost, left))
      else
        self.least = self.cost
      end
      self.bad, self.reach = {self.at, self.counted}, self.at
    end

    -- To the front: from here to there it fits nowhere.
    function Walk:jump(here)
      local at, counted, least, since = self.front[1], self.front[2], self.front[3], self.front[4]
      if not self.covers and self.reach == here - 1 then
        self.since, self.covers = since, true -- this walk goes on with what the front tells
      end
      self.least = self.reach + 1 >= since and max(self.least, least) or self.cost
      self.bad, self.reach, self.counted = {at, counted}, at, counted
      self:go_to(at, at + self.span)
    end

    -- Leave what was found for the next ask.
    function Walk:remember()
      local bad, slots, least, since = self.bad, self.slots, self.least, self.since
      if not bad or not self.covers then return end
      local fresh, place = {}, 1
      for _, front in ipairs(self.fronts) do
        if front[1] >= bad[1] and front[3] <= least and front[4] <= since then return end
        if front[3] < least or front[1] > bad[1] then fresh[#fresh + 1] = front end
      end
      while fresh[place] and fresh[place][1] <= bad[1] do place = place + 1 end
      table.insert(fresh, place, {bad[1], bad[2], least, since})
      if #fresh > FRONTS then
        local near, nearest = 1, fresh[1][1]
        for index = 2, FRONTS do
          local after = fresh[index][1] - fresh[index - 1][1]
          if after < nearest then near, nearest = index, after end
        end
        table.remove(fresh, near)
      end
      slots.enlist = true
      slots:set('fronts', fresh)
      slots:set('hint', {fresh[#fresh][1] + 1, NEVER})
    end
  end

  return Window, more
end
