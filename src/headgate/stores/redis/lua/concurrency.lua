-- Live leases, and what an adaptive limit makes of outcomes: the port of limits/concurrency.py, limits/aimd.py
-- and limits/probing.py.

-- Leases whose holders stopped renewing them go.
function prune(leases, now)
  local expires, id = leases:first()
  while expires and expires <= now do
    leases:delete(id)
    expires, id = leases:first()
  end
end

function makers.concurrency()
  local Concurrency = {kind = 'concurrency', leased = true, confirmable = false, held = false}
  local MEMORY, DUST = 24 * 3600 * SECOND, 1e-9
  -- For how long after a state was last marked the leases have surely not ended by themselves: a week less that day.
  local KEPT = 6 * MEMORY

  function Concurrency:made(row)
    self.lease, self.adaptive = row[9], row[10]
    return self
  end

  function Concurrency:largest(value)
    return value + DUST >= 1 and NEVER or 0
  end

  -- The working limit: what an adaptive limit has come to, but never above `value`. Of a class's share that part of it, but
  -- no less than one slot.
  function Concurrency:in_force(member, state, value)
    if self.whole then
      local name, key = partition(member, '|')
      local its = states:get(partition(name, '@') .. (key ~= '' and '|' .. key or ''))
      local working = its and its[2] ~= 0 and its[2] or self.whole.adaptive[1]
      return min(max(1, rounded(working * self.share)), value)
    end
    if not self.adaptive then return value end
    local working = state and state[2] ~= 0 and state[2] or min(self.adaptive[1], value)
    return min(working, value)
  end

  function Concurrency:earliest(now, member, cost, value, start)
    local state, leases = states:get(member), space('leases', member)
    if state and state[1] ~= 'concurrency' then kind_changed(member, state[1], 'concurrency') end
    local count = leases:len()
    if leases.bereft or not state then
      self:recover(now, member)
      state, count = states:get(member), leases:len()
    end
    if not state then return start end
    if self.adaptive or self.whole then value = self:in_force(member, state, value) end
    value = value + (DUST - 1)
    if count <= value then return start end
    self:recover(now, member)
    prune(leases, now)
    local excess = leases:len() - value
    if excess <= 0 then return start end
    for _, pair in ipairs(leases:scan(nil, ceil(excess))) do
      excess = excess - 1
      if excess <= 0 then return max(start, pair[1]) end
    end
    return NEVER
  end

  -- Nobody knows when slots are released: the first moment at which one ends by itself, however many wait.
  function Concurrency:after(now, member, cost, value)
    return self:earliest(now, member, cost, value, now)
  end

  function Concurrency:charge(now, member, cost, value, at, lease)
    local leases, state = space('leases', member), states:get(member)
    if not state then
      local until_ = now + MEMORY
      states:put(member, {'concurrency', 0, 0, 0, until_, now}, until_)
      leases.enlist, leases.renewed = true, true
    elseif now - state[6] > MEMORY then
      state[6] = now
      states:touch(member)
      leases.renewed = true
    end
    leases:look()
    if leases.bereft or leases.cleared then leases.marks = true end
    leases:put(lease[1], lease[3], lease[2])
    return false
  end

  -- How many leases, at most so many, could be had now one after the other.
  function Concurrency:room(now, member, cost, value, most)
    local state, leases = states:get(member), space('leases', member)
    if not state or state[1] ~= 'concurrency' or self.adaptive or self.whole then return 0 end
    local count = leases:len()
    if leases.bereft then return 0 end
    value = value + (DUST - 1)
    for more = 0, most - 1 do
      if count + more > value then return more, false end
    end
    return most, false
  end

  -- Have leases back of which a key is gone, or their state, as far as ids on record tell. Returns whether it was so.
  function Concurrency:recover(now, member)
    local leases, state = space('leases', member), states:get(member)
    if leases.checked or leases.cleared or leases.marks then return false end -- or they are made in this very call
    leases.checked = true
    local count = leases:len()
    if not state then
      if count == 0 and states_there() then return false end
    elseif leases.bereft then
      if now - state[6] > KEPT then return false end
    else
      local stored, placed = leases.stored, call('ZCARD', leases.order)
      if placed == stored then return false end
      -- Nothing is lost where all are found again. A few that are not were never granted: a cluster that moves keys one by
      -- one cuts a write short.
      if self:_restore(now, member) == stored or placed > 0 then return true end
      lose(now)
      return true
    end
    lose(now)
    self:_restore(now, member)
    return true
  end

  local function more()
    function Concurrency.until_(member, state)
      -- The last expiry would do; the first is found at once, and looking again later is cheap.
      local first = space('leases', member):first()
      return first and max(state[5], first + 1) or state[5]
    end

    -- Whether an ask of this ref takes one of these slots.
    local function takes(ref, member)
      if not policy_of(unpacked(ref)[1]) then return false end
      for _, step in ipairs(recall(ref).steps) do
        if step.member == member then return true end
      end
      return false
    end

    -- What is left of the leases, and those of ids on record and of called tickets; returns how many. Others register
    -- again.
    function Concurrency:_restore(now, member)
      local leases, known = space('leases', member), {}
      local left, ids, calls = leases:scan(now + 1), permits:scan(), space('calls'):scan()
      leases:prefetch_pairs(left)
      permits:prefetch_pairs(ids)
      for _, pair in ipairs(left) do known[pair[2]] = {leases:get(pair[2]) or false, pair[1]} end
      for _, pair in ipairs(ids) do
        local id, permit = pair[2], permits:get(pair[2])
        if permit and permit[5] and not permit[6] and permit[3] > now and takes(permit[1], member) then
          local row = known[id] and known[id][1] or {permit[1], permit[2], permit[4], false}
          known[id] = {row, known[id] and known[id][2] or permit[3]}
        end
      end
      for _, pair in ipairs(calls) do
        local ticket = space('tickets'):get(pair[2])
        if ticket and takes(ticket[3], member) then known[pair[2]] = {{ticket[3], now, 0, ticket[11]}, pair[1]} end
      end
      drop('leases', member)
      local found = 0
      for id, row in pairs(known) do
        if row[1] then
          self:charge(now, member, 1, 0, now, {id, row[2], row[1]})
          found = found + 1
        end
      end
      leases.enlist, leases.marks = true, true
      if not states:get(member) then
        states:put(member, {'concurrency', 0, 0, 0, now + MEMORY, now}, now + MEMORY)
      end
      return found
    end

    -- A slot comes back by ending its lease, not by an amount.
    function Concurrency:refund() end

    function Concurrency:confirm() end

    function Concurrency:assume_used() end

    function Concurrency:hold(now, member, cost, lease)
      if cost > 0 then
        self:charge(now, member, cost, 0, now, lease)
      else
        space('leases', member):delete(lease[1])
      end
    end

    -- What each rule has learned after a permit that was granted at `granted` ended with `outcome`: the working limit, a
    -- count, when it last shrank, and a list of the rest.
    local rules = {}

    function rules.aimd(adaptive, learned, rest, adapts, granted, now, in_use, maximum)
      local minimum, decrease, increase_every = adaptive[2], adaptive[3], adaptive[4]
      local working, streak, shrunk = learned[1], learned[2], learned[3]
      local peak = max(rest[1] or 0, in_use)
      if adapts < 0 then
        if granted <= shrunk then return working, 0, shrunk, {peak} end -- asked before the last shrink: the same congestion
        return max(min(minimum, maximum), working - decrease), 0, now, {0}
      end
      if adapts == 0 then return working, streak, shrunk, {peak} end
      streak = streak + 1
      if streak < increase_every then return working, streak, shrunk, {peak} end
      if 2 * peak >= working and working < maximum then return min(working + 1, maximum), 0, shrunk, {0} end
      return min(working, maximum), 0, shrunk, {peak}
    end

    function rules.probing(adaptive, learned, rest, adapts, granted, now, in_use, maximum)
      local minimum, probe_every, probe_most, ANSWERS = adaptive[2], adaptive[3], adaptive[4], 2
      local working, count, shrunk = learned[1], learned[2], learned[3]
      local peak, ceiling, rounds = rest[1] or 0, rest[2] or 0, rest[3] or 0
      local moved, answer = rest[4] or 0, rest[5] or 0
      if granted <= shrunk then return working, count, shrunk, {peak, ceiling, rounds, moved, answer} end
      if rounds == 0 then rounds = probe_every end
      peak = max(peak, in_use)
      if adapts < 0 then
        local took, aim = now - granted, nil
        if ceiling > 0 and working >= ceiling then -- a probe, refused
          aim, rounds = ceiling - 1, min(2 * rounds, probe_most)
        else
          local height = min(in_use, working)
          local fell = moved == shrunk or granted - moved > ANSWERS * took
          aim = fell and floor(height / 2) or floor(7 * height / 8)
          ceiling, rounds = height, probe_every
        end
        local after = max(min(minimum, maximum), min(aim, working - 1))
        return after, 0, now, {0, max(ceiling, after + 1), rounds, now, took}
      end
      if adapts > 0 then
        count = count + 1
        if peak >= working and now - moved > ANSWERS * answer then
          if ceiling > 0 and working >= ceiling then ceiling, rounds = 0, probe_every end -- a probe, accepted
          local waits = ceiling > 0 and working >= ceiling - 1 and rounds * working or 1
          if count >= waits and working < maximum then
            return min(working + 1, maximum), 0, shrunk, {0, ceiling, rounds, now, answer}
          end
        end
      end
      return working, count, shrunk, {peak, ceiling, rounds, moved, answer}
    end

    -- Move an adaptive limit by how a permit ended (before its lease goes). Returns the working limit before and after, if
    -- it moved.
    function Concurrency:feedback(now, member, value, outcome, granted)
      local state = state_of(self, member)
      if not self.adaptive or not state then return nil end
      local working, leases = self:in_force(member, state, value), space('leases', member)
      prune(leases, now)
      local rule = rules[self.adaptive[5] or 'aimd'] -- its name stands behind its arguments, but for the first rule there was
      local after, count, shrunk, rest = rule(self.adaptive, {working, state[3], state[4]},
        {state[7], state[8], state[9], state[10], state[11]}, outcome_of(outcome).adapts, granted, now, leases:len(), value)
      states:set(member, {'concurrency', after, count, shrunk, now + MEMORY, state[6], unpack(rest)})
      if after ~= working then return working, after end
    end

    function Concurrency.rough_use(now, member, state)
      return space('leases', member):len()
    end

    function Concurrency:describe(now, member, value)
      local state = state_of(self, member)
      local in_force = self:in_force(member, state, value)
      local free_in = self:earliest(now, member, 1, value, now) - now
      local used = state and space('leases', member):len() or 0
      if used > 0 then
        -- Those that have expired and were not looked at since are in the set, but no longer live.
        for _, pair in ipairs(space('leases', member):scan()) do
          if pair[1] > now then break end
          used = used - 1
        end
      end
      return usage_of(self, member, used, in_force, free_in, nil, (self.adaptive or self.whole) and value)
    end
  end

  return Concurrency, more
end
