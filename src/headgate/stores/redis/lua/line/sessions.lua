-- The sessions that tickets belong to: one per process, which is heard of, asleep or dead.

-- All tickets of a process, read in one go.
local function _tickets_of(session)
  local found = space('of', session):scan()
  space('tickets'):prefetch_pairs(found)
  return found
end

-- A process was heard of. Returns whether it had been asleep: then its tickets stand in line again.
-- A ticket that missed its call comes back only when its own waiter was heard of (`own`).
local function hear(now, session, own)
  local sessions = space('sessions')
  local was = sessions:get(session)
  local asleep = was == SLEEPS
  sessions:put(session, was == LISTENS and LISTENS or THERE, now + SESSION)
  if asleep then
    for _, pair in ipairs(_tickets_of(session)) do
      local ticket = find(pair[2])
      if ticket.hidden == ASLEEP then
        ticket.hidden = 0
        _enter(ticket)
      end
    end
  end
  if own and space('tickets'):get(own)[15] ~= 0 then
    local ticket = find(own)
    ticket.hidden = 0
    _enter(ticket)
    return true
  end
  return asleep
end
line.hear = hear

local function _put_to_sleep(session)
  local sessions = space('sessions')
  local was = sessions:get(session)
  if not was or was == SLEEPS then return end
  sessions:set(session, SLEEPS)
  for _, pair in ipairs(_tickets_of(session)) do
    local ticket = find(pair[2])
    if ticket.called == 0 and ticket.hidden == 0 then
      _leave(ticket)
      ticket.hidden = ASLEEP
      _write(ticket)
    end
  end
end
