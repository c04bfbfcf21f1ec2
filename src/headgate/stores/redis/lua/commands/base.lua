-- What the commands have in common: the port of commands/base.py. A reply is an array or a number, which wire.py decodes.

local REAP = 512

-- A number that a reply can carry exactly: as text above 2^53.
local function whole(number)
  return number > NEVER and format('%.0f', number) or number
end

function wait_of(at, limit, position, check_at, now, reason, timing)
  return {'W', whole(at), limit or false, position, check_at or false, now, reason or '', timing or 'exact'}
end

function refusal_of(limit, reason, at, now)
  return {'R', limit or false, reason, whole(at), now}
end

-- Ended: a number, 1 where the lease was lost; with the limits that moved where any did (its moment, where the permit goes on,
-- is another reply: see `settle`).
local function ended_of(lost, adapted)
  local bit = lost and 1 or 0
  return adapted[1] and {'A', bit, adapted} or bit
end

-- A member of `assumed` after a loss: the line is gone, so that no call holds anything any more.
local NO_LINE = ''

-- Delete what has expired: idle states, ended permits. Their scores are lower bounds, checked here.
local function reap(now)
  records.head.policy = '' -- it may be gone; the next `remember` looks
  for _ = 1, REAP do
    local score, member = states:first()
    if not score or score > now then break end
    local state = states:get(member)
    local kind = state and kind_of(state[1])
    local until_ = state and kind.until_(member, state) or 0
    if until_ <= now and state and kind.until_overridden and records.head.overrides > 0 and is_overridden(member) then
      until_ = kind.until_overridden(state, until_) -- at the value in force it may run off far more slowly
    end
    if until_ <= now and state and kind.held and state[kind.held] ~= 0 then
      until_ = now + SECOND -- a call holds some of it, which has no end of its own
    end
    if until_ > now then
      states:put(member, state, min(until_, now + 3600 * SECOND))
    else
      states:delete(member)
      drop('windows', member)
      drop('promised', member)
      drop('leases', member)
    end
  end
  for _ = 1, REAP do
    local score, id = permits:first()
    if not score or score > now then return end
    local permit = permits:get(id)
    local until_ = permit and permit[3] + REMEMBER or 0
    if until_ > now then
      permits:put(id, permit, until_)
    else
      permits:delete(id)
    end
  end
end

-- The port of head.py, which has the rules. What a caller was told is an epoch, or else the name of its session.
local function is_epoch(told)
  return find(told, '.', 1, true) ~= nil
end

function is_another(epoch, told)
  return epoch ~= told and epoch ~= '' and is_epoch(told)
end

local function new_epoch(now, seq, told)
  return format('%.0f.%.0f.%s', now, seq, told:match('[^.]*$'))
end

-- A lease that is missing and was granted before this moment went with lost state: its holder has not lost it.
function lost_before()
  local head = records.head
  return (head.lost ~= 0 or is_another(head.epoch, records.told)) and head.lost_before or 0
end

-- Whether the head has lost state, by what the caller was told before. `begin` notices it then.
function compare(seen, told)
  local head = records.head
  records.told = told
  -- Every decision compares the number already, so that another epoch is told by it as well.
  records.seen = is_another(head.epoch, told) and max(seen, head.seq + 1) or seen
end

-- State was lost, all of it or a key. From now on rates come back with time, and live holders register again.
function lose(now)
  if records.noticed then return end
  records.noticed = true
  states_there() -- while the head still says so
  drop('assumed')
  local head = records.head
  head.lost, head.lost_before = now, now
  -- What the head says of the other keys may not be so any more.
  count_overrides()
  head.tickets, head.ends, head.policy = space('tickets'):len(), '', ''
end

-- State that was lost is noticed here. Returns whether it was.
function notice(now)
  local head = records.head
  local seq = head.seq
  local behind, torn = seq < records.seen, records.torn
  if not (behind or torn) then return false end
  local another = is_another(head.epoch, records.told)
  records.torn = false
  head.seq = max(seq, records.seen) + 1
  if another and head.lost_before ~= 0 and not torn then
    records.noticed_before = true
  else
    lose(now)
    if another and not torn then
      head.lost_before = tonumber(head.epoch:match('^%d+'))
    elseif behind or head.epoch == '' then
      head.epoch = new_epoch(now, head.seq, records.told)
    end
  end
  if records.forgets_line then space('assumed'):set(NO_LINE, 1) end
  return true
end

-- The store's time, never backwards; and state that was lost is noticed.
function begin(now)
  local head = records.head
  local seq = head.seq
  if now < head.now then now = head.now end
  head.now = now
  if not notice(now) then
    head.seq = seq + 1
    if head.epoch == '' and seq % REAP_EVERY == 0 then
      head.epoch = is_epoch(records.told) and records.told or new_epoch(now, head.seq, records.told)
    end
  end
  if seq % REAP_EVERY == 0 then reap(now) end
  return now
end

-- The plan's steps with the values in force, and lost state made up for.
function steps_in_force(now, plan)
  local head = records.head
  local steps = head.overrides > 0 and current(plan) or plan.steps
  local lost = head.lost
  if lost ~= 0 then
    local assumed, over = space('assumed'), now > lost + REMEMBER
    for _, step in ipairs(steps) do
      local limit = step.limit
      if type(limit.per) == 'number' and now < lost + limit.per + limit.slack then over = false end
      if not assumed:get(step.member) then
        local state = states:get(step.member)
        local held = state and kind_of(state[1]).held
        if held and assumed:get(NO_LINE) then
          state[held] = 0
          states:touch(step.member)
        end
        limit:assume_used(now, step.member, step.value, lost)
        assumed:set(step.member, 1)
      end
    end
    if over then
      drop('assumed')
      head.lost = 0
    end
  end
  return steps
end

-- A number for a message, as in errors.py: whole as it is, else with three digits that count.
local function figure(number)
  return format((number == floor(number) or number >= 100) and '%.0f' or '%.3g', number)
end

-- Why an ask can never go; or not before `lifts`, when a value ends that was set for a time.
function too_large_text(step, plan, lifts)
  local limit = step.limit
  local whose = step.rank >= 0 and "the share of priority '" .. plan.policy.priorities[step.rank + 1] .. "'" or 'it'
  local most = limit.leased and 'no slot at all' or 'at most ' .. figure(limit:largest(step.value)) .. ' at once'
  local fits = lifts >= NEVER and 'can never fit' or 'does not fit at present'
  return format('a cost of %s %s %s: %s allows %s', figure(step.cost), limit.unit, fits, whose, most)
end

-- Pause at least until then; a pause that is already longer stays.
function pause(until_, reason)
  local head = records.head
  if until_ > head.paused then head.paused, head.reason = until_, reason end
end

-- --- permits.py: what is known of attempts ----------------------------------------------------------------------------

-- How many attempts a permit has by name; and what stands for all others, which cannot be cancelled.
local MOST_ATTEMPTS, OTHERS = 8, '*'

-- Whether a permit on record has not ended, and its lease has not expired unseen.
local function permit_lives(permit, now)
  return not permit[6] and (not permit[5] or permit[3] > now)
end

-- The row of a permit: with its confirmation, its attempts and its sent stamp up to the last of them that it has.
local function permit_row(permit, ends, ended, confirmed, attempts, sent)
  local row = {permit[1], permit[2], ends, permit[4], permit[5], ended, permit[7]}
  if sent ~= 0 then
    row[8], row[9], row[10] = confirmed, attempts, sent
  elseif attempts ~= '' then
    row[8], row[9] = confirmed, attempts
  elseif confirmed ~= 0 then
    row[8] = confirmed
  end
  return row
end

local function name_of(id, attempt)
  return attempt ~= '' and id .. ' ' .. attempt or id
end

-- Put a tombstone: whatever asks under this name was over at that moment, or is known to have been later.
local function bury(name, over_at)
  local known = permits:get(name)
  if not known or known[3] < over_at then
    permits:put(name, {'', over_at, over_at, 0, false, true, false}, over_at + REMEMBER)
  end
end

-- Whether there is a tombstone of this name that still counts.
local function is_buried(name, now)
  local known = permits:get(name)
  return known and known[6] and known[3] + REMEMBER > now
end

-- Whether an attempt is one of these; and how many they are.
local function among(attempts, attempt)
  local found, count = false, 0
  for name in attempts:gmatch('%S+') do
    found, count = found or name == attempt, count + 1
  end
  return found, count
end

-- Another permit takes the place of the ended one that is on record under an id: its attempts stay over.
local function bury_attempts(id)
  local known = permits:get(id)
  for attempt in (known and known[9] or ''):gmatch('%S+') do
    if attempt ~= OTHERS then bury(name_of(id, attempt), known[3]) end
  end
end

-- One more attempt is answered with a permit that lives. The permit ends by a cancel only when all have cancelled.
local function join(now, id, permit, attempt)
  local attempts = permit[9] or ''
  if attempts == '' then attempts = OTHERS end
  local found, count = among(attempts, attempt)
  if found then return end
  if attempt ~= '' and count >= MOST_ATTEMPTS then
    bury(name_of(id, attempt), now)
    attempt = ''
  end
  if attempt == '' then attempt = OTHERS end
  if not among(attempts, attempt) then
    attempts = attempts .. ' ' .. attempt
    permits:set(id, permit_row(permit, permit[3], permit[6], permit[8] or 0, attempts, permit[10] or 0))
  end
end

-- Whether two refs ask for the same, by whatever version of the configuration.
local function same(ref, other)
  if ref == other then return true end
  local function equal(these, those)
    local left = {}
    for _, pair in ipairs(these) do left[pair[1]] = pair[2] end
    for _, pair in ipairs(those) do
      if left[pair[1]] ~= pair[2] then return false end
      left[pair[1]] = nil
    end
    return next(left) == nil
  end
  local a, b = unpacked(ref), unpacked(other)
  return a[2] == b[2] and equal(a[3], b[3]) and equal(a[4], b[4])
end

-- Whether two refs ask for the same, by the same version of the configuration.
local function same_plan(ref, other)
  return ref == other or unpacked(ref)[1] == unpacked(other)[1] and same(ref, other)
end

-- The reply to so many grants in a row, with numbers from `seq` on; nil where the last reply was extended by them.
function granted(at, expires, seq, worth, count)
  local last, worth_bit = records.last, worth and 1 or 0
  if last and last[1] == at and last[2] == expires and last[3] + last[5] == seq and last[4] == worth_bit then
    last[5] = last[5] + count
    return nil
  end
  last = {at, expires, seq, worth_bit, count}
  records.last = last
  return last
end
