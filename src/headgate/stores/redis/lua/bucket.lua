-- The token bucket: the port of limits/bucket.py, where its state and its promises are explained.

function makers.bucket()
  local Bucket = {kind = 'bucket', leased = false, confirmable = false, held = 4}
  local DUST, FLOORS = 1e-9, 16

  function Bucket:made(row)
    self.per, self.burst, self.slack = row[9], row[10], row[11]
    self.usable, self.per_unit = self:in_force(self.limit)
    self.drain = {self.per_unit, self.slack}
    return self
  end

  function Bucket:in_force(value)
    return self.burst * (value / self.limit) - value / self.per * self.slack, self.per / value
  end

  function Bucket:largest(value)
    return self.burst * (value / self.limit)
  end

  local function _sunk(floor_, level)
    if not floor_ or level <= 0 then return false end
    if level >= floor_[1] then return floor_ end
    local sunk = {level}
    for index = 2, #floor_ do sunk[index] = floor_[index] end
    return sunk
  end


  function Bucket:earliest(now, member, cost, value, start)
    local state = states:get(member) or recovered(self, now, member, value)
    if not state then return start end
    if state[1] ~= 'bucket' then kind_changed(member, state[1], 'bucket') end
    if state[6] ~= 0 then return self:_among(now, member, cost, value, start) end
    local used, at, held = state[2], state[3], state[4]
    local usable, per_unit = self.usable, self.per_unit
    if value ~= self.limit then usable, per_unit = self:in_force(value) end
    at = at + ceil((used + held + cost - usable) * per_unit)
    if held ~= 0 and held + cost > usable then
      -- What called tickets hold does not run off, however long the bucket was idle before.
      at = max(at, start + ceil((held + cost - usable) * per_unit))
    end
    return at > start and at or start
  end

  function Bucket:after(now, member, cost, value, ahead, size)
    return self:earliest(now, member, cost + ahead * size, value, now)
  end

  function Bucket:pace(value)
    return self.per / value
  end

  -- A state for a bucket that was never used: empty for long enough for any cost.
  function Bucket:_empty(now, member)
    local state = {'bucket', 0, now - self.per - self.slack, 0, self.drain, 0, false}
    states:put(member, state, now + self.per)
    return state
  end

  function Bucket:charge(now, member, cost, value, at, lease)
    local state = states:get(member) or self:_empty(now, member)
    local used, last, promised = state[2], state[3], state[6]
    if at > now then
      self:_promise(member, cost, value, at)
      return false
    end
    if promised ~= 0 then self:_forget_hint(member, cost) end
    -- `last` can be later than now where promises were folded in; then it only runs off from there.
    if now > last then
      used = used - (now - last) / (self.per / value)
      if used < 0 then used = 0 end
      last = now
    end
    state[2], state[3], state[5] = used + cost, last, self.drain
    if state[7] then state[7] = _sunk(state[7], used) end
    states:touch(member)
    return false
  end

  -- How many such asks, at most so many, could go now one after the other, by the same steps as above.
  function Bucket:room(now, member, cost, value, most)
    local state = states:get(member)
    if not state or state[1] ~= 'bucket' or state[6] ~= 0 or state[4] ~= 0 then return 0 end
    local used, last = state[2], state[3]
    local usable, per_unit = self.usable, self.per_unit
    if value ~= self.limit then usable, per_unit = self:in_force(value) end
    for count = 0, most - 1 do
      if last + ceil((used + cost - usable) * per_unit) > now then return count, false end
      if now > last then used, last = max(0, used - (now - last) / (self.per / value)), now end
      used = used + cost
    end
    return most, false
  end

  -- Charge so many, for which there is room.
  function Bucket:take(now, member, cost, value, count)
    self:charge(now, member, cost, value, now, NO_LEASE)
    local state = states:get(member)
    local used = state[2]
    for _ = 2, count do used = used + cost end
    state[2] = used
  end

  local function more()
    function Bucket.until_(member, state)
      local last, units = state[3], state[2] + state[4]
      if state[6] ~= 0 then
        local charges = space('promised', member)
        for _, pair in ipairs(charges:scan()) do
          last, units = pair[1], units + (charges:get(pair[2]) or 0)
        end
      end
      return floor(last + units * state[5][1] + state[5][2]) + 1
    end

    -- A state knows the limit's own rate only: one whose rate was overridden is remembered so many times as long.
    local SLOWER = 1000
    function Bucket.until_overridden(state, until_)
      return until_ + (until_ - state[3]) * SLOWER
    end

    -- --- what still counts of an old charge ----------------------------------------------------------------------------

    local function _least(floor_, at)
      local least = NEVER
      if floor_ then
        for index = 1, #floor_, 2 do
          least = min(least, floor_[index])
          if at >= floor_[index + 1] then return max(0, least) end
        end
      end
      return 0
    end

    local function _given_back(floor_, now, cost, at, level, per)
      local fresh = {}
      if not floor_ or now - floor_[2] > floor(per / FLOORS) then fresh[1], fresh[2] = level, now end
      local lowered = true
      if floor_ then
        for index = 1, #floor_, 2 do
          local low, since = floor_[index], floor_[index + 1]
          fresh[#fresh + 1] = lowered and low - cost or low
          fresh[#fresh + 1] = since
          lowered = lowered and at < since
        end
      end
      if fresh[1] > level then fresh[1] = level end
      for index = #fresh, 2 * FLOORS + 1, -1 do fresh[index] = nil end
      return fresh
    end

    function Bucket:refund(now, member, cost, value, at, confirmed)
      local state = states:get(member)
      if not state or state[1] ~= 'bucket' then
        if cost < 0 then self:charge(now, member, -cost, value, now, NO_LEASE) end
        return
      end
      if state[6] ~= 0 then
        if at > now then
          self:_unpromise(member, cost, at)
          return
        end
        self:_fold(now, member, value)
        self:_forget_hint(member, 0)
        state = states:get(member)
      end
      if cost < 0 then
        self:charge(now, member, -cost, value, now, NO_LEASE)
        records.far = max(records.far, Bucket.until_(member, states:get(member)))
        return
      end
      local used, last, held, promised, floor_ = state[2], state[3], state[4], state[6], state[7]
      local level = max(0, used - max(0, now - last) / (self.per / value))
      -- Of the last charge all that has not run off still counts; of an older one, what the level never fell below.
      local back = min(cost, at >= last and level or min(level, _least(floor_, at)))
      floor_ = _given_back(floor_, now, cost, at, level - back, self.per)
      states:set(member, {'bucket', used - back, last, held, self.drain, promised, floor_})
    end

    function Bucket:restamp(now, member, cost, value, at, sent)
      -- Charged at `sent`, the level would be higher by what has run off of it, and by no more than the rate makes of the
      -- time between: the bucket may have drained so much too early.
      local usable, per_unit = self:in_force(value)
      local state = state_of(self, member) or recovered(self, now, member, value)
      local counts, last = 0, 0
      if state then
        if state[6] ~= 0 then
          self:_fold(now, member, value)
          state = states:get(member)
        end
        last = state[3]
        local level = max(0, state[2] - max(0, now - last) / per_unit)
        counts = min(cost, at >= last and level or min(level, _least(state[7], at)))
      end
      self:charge(now, member, min(cost - counts, (sent - at) / per_unit), value, now, NO_LEASE)
      state = states:get(member)
      records.far = max(records.far, Bucket.until_(member, state))
      local used, until_, held = state[2], state[3], state[4]
      -- A cost above the usable burst fits an empty bucket only. Where nothing was charged since it, it is in one.
      local over = used + held - (at >= last and max(usable, cost) or usable)
      return over <= DUST and now or until_ + ceil((used + held - usable) * per_unit)
    end

    function Bucket:hold(now, member, cost, lease)
      local state = states:get(member) or self:_empty(now, member)
      states:set(member, {'bucket', state[2], state[3], max(0, state[4] + cost), state[5], state[6], state[7]})
    end

    function Bucket:confirm() end

    function Bucket:assume_used(now, member, value, lost)
      local state = state_of(self, member) or {'', 0, 0, 0, {}, 0, false}
      local used, at = state[2], state[3]
      local full = max(0, used - max(0, lost - at) * (value / self.per), (self:in_force(value)))
      if state[6] ~= 0 then
        space('promised', member):delete('hint')
        space('promised', member):delete('tail')
      end
      local fresh = {'bucket', full, max(lost, at), state[4], self.drain, state[6], false}
      local quiet = {'bucket', full, fresh[3], state[4], self.drain, 0, false}
      states:put(member, fresh, Bucket.until_(member, quiet))
    end

    -- About how many units of a state count, and no fewer.
    function Bucket.rough_use(now, member, state)
      return max(0, state[2] - max(0, now - state[3]) / state[5][1]) + state[4]
    end

    function Bucket:describe(now, member, value)
      -- First: promises whose time has come are part of the level then.
      local free_in = self:earliest(now, member, min(1, self:largest(value)), value, now) - now
      local state = state_of(self, member)
      local used, to_come = 0, 0
      if state then
        used = max(0, state[2] - max(0, now - state[3]) * (value / self.per)) + state[4]
        if state[6] ~= 0 then
          local charges = space('promised', member)
          for _, pair in ipairs(charges:scan()) do to_come = to_come + (charges:get(pair[2]) or 0) end
        end
      end
      return usage_of(self, member, used, self:largest(value), free_in, nil, nil, to_come)
    end

    -- --- promises: charges kept in time order --------------------------------------------------------------------------

    local NO_HINT, NO_TAIL, LOOKED = {0, 0, 0, -1}, {0, 0, false}, 2000

    -- at, used, exact; NO_TAIL where it is not known.
    local function tail_of(charges, promised)
      local tail = charges:get('tail')
      return tail and tail[4] == promised and tail or NO_TAIL
    end

    local function put_tail(charges, at, used, exact, promised)
      if at ~= 0 then charges:set('tail', {at, used, exact, promised}) end
    end

    -- The level has changed, by `more` at most: so has that after every charge to come.
    function Bucket:_forget_hint(member, more)
      local charges, promised = space('promised', member), states:get(member)[6]
      charges:delete('hint')
      local tail = tail_of(charges, promised)
      put_tail(charges, tail[1], tail[2] + more, false, promised)
    end

    -- Whether all that was promised is known: as many as the state says, and each with its amount.
    local function _is_whole(charges, promised)
      if charges.dirty or charges.checked then return true end
      charges.checked = true
      return call('ZCARD', charges.order) == promised and call('HLEN', charges.key) >= promised
    end

    -- Charges whose time has come move into the level.
    function Bucket:_fold(now, member, value)
      local charges = space('promised', member)
      local state = states:get(member)
      if not _is_whole(charges, state[6]) then
        drop('promised', member)
        states:set(member, {'bucket', state[2], state[3], state[4], state[5], 0, state[7]})
        used_up(self, now, member, value)
        return
      end
      local used, at, promised, floor_ = state[2], state[3], state[6], state[7]
      local time = charges:first()
      while time and time <= now do
        if time > at then
          used = max(0, used - (time - at) * (value / self.per))
          at = time
          floor_ = _sunk(floor_, used)
        end
        used = used + charges:get(time)
        charges:delete(time)
        promised = promised - 1
        time = charges:first()
      end
      if promised <= 0 then
        drop('promised', member)
        promised = 0
      elseif promised < state[6] then
        local tail = tail_of(charges, state[6])
        put_tail(charges, tail[1], tail[2], tail[3], promised)
      end
      states:set(member, {'bucket', used, at, state[4], state[5], promised, floor_})
    end

    -- The first moment from `start` on that breaks no bound then, nor at any charge already promised.
    function Bucket:_among(now, member, cost, value, start)
      self:_fold(now, member, value)
      local state = states:get(member)
      local used, at, held = state[2], state[3], state[4]
      if state[6] == 0 then return self:earliest(now, member, cost, value, start) end
      local charges = space('promised', member)
      local rate, usable = value / self.per, self:in_force(value) - held
      local hint = charges:get('hint') or NO_HINT
      local hint_at, hint_used, hint_cost, headroom = hint[1], hint[2], hint[3], hint[4]
      if cost <= headroom and at + ceil((used + cost - usable) / rate) <= start then return start end
      local from_base = not (hint_at > at and cost >= hint_cost)
      if not from_base then at, used = hint_at, hint_used end
      local covers = start <= (from_base and now or at)
      local tail = tail_of(charges, state[6])
      local after_tail = max(start, tail[1] + max(0, ceil((tail[2] + cost - usable) / rate)))
      if tail[3] and start >= tail[1] then return after_tail end
      local best, before_at, before_used = NEVER, at, used
      local least = usable
      local with_it, with_it_at = 0, 0 -- the level with this cost in it, and when
      local room, idle, claim = 0, 0, 0 -- the most that could fit in the gaps so far, and what ran off below empty in them
      local looked, all = 0, true
      local walk = charges:walk(at + 1)
      local time, units = walk()
      while time do
        looked = looked + 1
        if looked > LOOKED and tail ~= NO_TAIL then
          all = false
          break
        end
        if best == NEVER then
          local candidate = max(start, at + max(0, ceil((used + cost - usable) / rate)))
          if candidate <= time then
            best, before_at, before_used, claim = candidate, at, used, room
            with_it, with_it_at = max(0, used - (best - at) * rate) + cost, best
          end
        end
        used = used - (time - at) * rate
        if best ~= NEVER then
          with_it = with_it - (time - with_it_at) * rate
          if with_it + units > usable + DUST and with_it > used + DUST then
            best = NEVER -- this promise would be broken: not before it
          else
            with_it, with_it_at = max(0, with_it) + units, time
          end
        end
        local below, left = max(0, -used), usable - max(0, used) - units
        least = min(least, left)
        left, idle = max(0, left), idle + below
        room = max(min(room, left + idle), left + below)
        used, at = max(0, used) + units, time
        if best ~= NEVER and with_it <= used + DUST then
          all = false
          break -- all of it has run off by then: it is felt no more
        end
        time, units = walk()
      end
      if all then
        looked = 0
        if not tail[3] then put_tail(charges, at, used, true, state[6]) end
      end
      if best == NEVER then
        best, before_at, before_used = max(start, at + max(0, ceil((used + cost - usable) / rate))), at, used
        claim = room
      end
      -- Too many were looked at. After the last promise nothing is in its way: no later than if it stood in line.
      if looked > LOOKED then best = after_tail end
      if from_base and all then headroom = least end
      claim = min(cost, claim + 2 * DUST)
      if covers and (from_base or claim <= hint_cost) then
        hint_at, hint_used, hint_cost = before_at, before_used, from_base and claim or hint_cost
      end
      if covers or (from_base and all) then
        charges.enlist = true
        charges:set('hint', {hint_at, hint_used, hint_cost, headroom})
      end
      return best
    end

    function Bucket:_promise(member, cost, value, at)
      local charges = space('promised', member)
      local state = states:get(member)
      local used, last, held, promised = state[2], state[3], state[4], state[6]
      local hint = charges:get('hint') or NO_HINT
      local hint_at, hint_used, hint_cost, headroom = hint[1], hint[2], hint[3], hint[4]
      local rate, usable = value / self.per, self:in_force(value) - held
      local left = usable - max(0, used - (at - last) * rate) - cost
      local tail = promised ~= 0 and tail_of(charges, promised) or {last, used, true}
      local tail_at, tail_used, exact = tail[1], tail[2], tail[3]
      local is_last = tail_at > 0 and at > tail_at
      if is_last then tail_at, tail_used = at, max(0, tail_used - (at - tail_at) * rate) end
      if is_last and headroom >= 0 then
        headroom = min(headroom, usable - tail_used - cost) -- no later charge feels it
      else
        headroom = cost <= headroom and min(headroom - cost, left) or NO_HINT[4]
      end
      if at == hint_at then
        hint_used = hint_used + cost
      elseif at < hint_at then
        hint_at = 0
      end
      local units = charges:get(at)
      charges:put(at, (units or 0) + cost, at)
      charges.enlist = true
      promised = promised + (units and 0 or 1)
      charges:set('hint', {hint_at, hint_used, hint_cost, headroom})
      put_tail(charges, tail_at, tail_used + cost, exact and at == tail_at, promised)
      states:set(member, {'bucket', used, last, held, state[5], promised, state[7]})
    end

    function Bucket:_unpromise(member, cost, at)
      self:_forget_hint(member, max(0, -cost))
      local charges = space('promised', member)
      local units = charges:get(at)
      if not units then return end
      if units - cost > DUST then
        charges:put(at, units - cost, at)
        return
      end
      charges:delete(at)
      local state = states:get(member)
      local tail = tail_of(charges, state[6])
      put_tail(charges, tail[1], tail[2], tail[3], state[6] - 1)
      states:set(member, {'bucket', state[2], state[3], state[4], state[5], state[6] - 1, state[7]})
      if state[6] <= 1 then drop('promised', member) end
    end
  end

  return Bucket, more
end
