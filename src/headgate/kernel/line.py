"""PURE. The order of waiting asks: classes, lanes that take turns, calls, and the sessions that tickets belong to.

Per class there is one lane per combination of key values. Lanes take turns by virtual time, advanced by what a ticket
takes (start-time fair queueing); within a lane the order is that of arrival. `serve` walks that order: a ticket that fits
is *called* (its charge is held for `claim`), a lane that its own key's limit refuses is *parked* at that limit, and a
ticket that a shared limit refuses is waited for: nothing behind it that uses the same limit overtakes it.

Spaces, all of one gate:

    tickets             id → Ticket
    lane/<lane>         ticket ids by arrival
    lanes               lane → (tag, where it is: "" ready, else the member it is parked at)
    ready/<tier>.<rank> lanes by tag
    parked/<member>     lanes by tier and tag: a line of its own, whose first is waited for
    due                 members at which lanes are parked, by when to look again
    rest/<tier>         lanes that went empty, by the tag they would go on with
    calls               called tickets by when the call runs out
    sessions            process sessions by when they are taken for dead → 1 while asleep
    of/<session>        its ticket ids by arrival
    young               tickets below the highest class, by when their patience ends
    line                "meta" → LineState, "queued" → how much stands in lanes (`ahead`)

A tier is where a ticket stands, a rank is the class it was asked with: a ticket whose patience has ended stands in tier 0.

It is one long module because lanes, sessions and serving call each other: split by topic they import one another.
"""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache
from operator import itemgetter

from ..errors import KindChanged
from . import ahead
from .model import NEVER, SECOND, Wake
from .overrides import lapse
from .plan import blocked_by, hold, let_go, recall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NamedTuple, Protocol

    from .plan import Plan, Steps
    from .records import Records, Space, Spaces

    class Asker(Protocol):
        """The command that asks; its own ticket may be the next."""

        id: str
        plan: Plan

        def take(self, records: Records, now: int, steps: Steps) -> Any: ...

    class Ticket(NamedTuple):
        id: str
        session: str
        ref: Any  #: what it asks for: see plan.Ref
        lane: str  #: the combination of key values
        rank: int
        tier: int
        since: int
        arrival: int
        place: int  #: how many stood in line when it came, itself included
        weight: float
        holder: str | None
        lease: int  #: microseconds, 0 for none
        remembered: bool  #: its id was given by the caller
        called: int  #: when its call runs out; 0 while it waits
        hidden: int  #: 0, or why it stands in no lane: ASLEEP or MISSED
        attempt: str = ""  #: the last attempt that stood under its id, where that is a caller's

    class LineState(NamedTuple):
        arrivals: int
        tiers: int
        timer: str  #: the ticket that keeps the timer for the next free moment
        timer_at: int
        blocked: tuple[
            tuple[int, int], ...
        ]  #: (tier, rank): tickets from that tier and rank on are behind one that waits
        turns: tuple[float, ...]  #: virtual time per tier
        limit: str  #: the limit that the first in order waits for
        free_at: int  #: when that limit would let it go
else:
    Ticket = namedtuple(
        "Ticket",
        "id session ref lane rank tier since arrival place weight holder lease remembered called hidden attempt",
        defaults=("",),  # a ticket of an older version has none
    )
    LineState = namedtuple("LineState", "arrivals tiers timer timer_at blocked turns limit free_at")

#: A ticket or state from its parts: naming them takes longer.
_new = tuple.__new__

#: Where a ticket says so, for a heartbeat that looks at thousands.
CALLED, HIDDEN = 13, 14
_hidden = itemgetter(HIDDEN)

#: A process that was not heard of for this long is dead.
SESSION = 10 * SECOND

#: What a tier is worth in the order of parked lanes: more than any tag.
TIER = 2.0**40

#: A step of virtual time that is too short to matter, and long enough to tell before from after.
INSTANT = 2.0**-40

#: Where something happens by itself at some time.
CLOCKS = ("calls", "due", "sessions", "young")

#: How many tickets of dead processes leave in one serving: a crowd of them holds up no other command for long.
BURIED = 512

#: Why a ticket stands in no lane: another ticket of its process missed a call, or it missed its own.
ASLEEP, MISSED = 1, 2


def line_state(records: Records) -> LineState:
    found = records.line_state.get("meta")
    if found.__class__ is LineState:
        return found
    return LineState(0, 1, "", NEVER, (), (0.0,), "", 0) if found is None else LineState(*found)


def _ticket(records: Records, id: str) -> Ticket:
    found = records.tickets.get(id)
    # In memory it is the very one that was put there.
    return found if found.__class__ is Ticket else Ticket(*found)


def find(records: Records, id: str) -> Ticket | None:
    found = records.tickets.get(id)
    return found if found is None or found.__class__ is Ticket else Ticket(*found)


def _marked(ticket: Ticket, called: int, hidden: int) -> Ticket:
    """The same ticket, called or hidden or neither."""
    return _new(Ticket, (*ticket[:CALLED], called, hidden, ticket.attempt))


def look_up(records: Records, ids: Sequence[str], called: list[str], unknown: list[str]) -> None:
    """Of these tickets, those whose waiters should come: they were called or missed a call; and those that are gone."""
    found = list(map(records.tickets.get, ids))
    if all(found) and not records.calls and not any(map(_hidden, found)):
        return  # the usual answer to a heartbeat, for hundreds
    for id, ticket in zip(ids, found, strict=True):
        if ticket is None:
            unknown.append(id)
        elif ticket[CALLED] or ticket[HIDDEN] == MISSED:
            called.append(id)


def _lane_of(ticket: Ticket) -> str:
    return f"{ticket.tier}.{ticket.rank}.{ticket.lane}"


def is_behind(records: Records, plan: Plan, state: LineState) -> bool:
    """Whether a new ask would stand behind a ticket that waits."""
    rank = plan.rank
    for tier, from_rank in state.blocked:
        if rank >= tier and rank >= from_rank:
            return True
    if records.lanes.get(f"{rank}.{rank}.{plan.lane}") is not None:
        return True
    return _ahead(records, plan.steps, (rank + 1) * TIER) is not None


def _ahead(records: Records, steps: Steps, order: float) -> str | None:
    """The member of these steps at which a lane that goes before `order` is parked, if there is one."""
    due = records.looks_due
    for step in steps:
        if step.by and due.get(step.member) is not None:  # every member with a parked lane is due at some time
            first = records.parked[step.member].first()
            if first is not None and first[0] < order:
                return step.member
    return None


# --- sessions ---------------------------------------------------------------------------------------------------


def hear(records: Records, now: int, session: str, own: Ticket | None = None) -> bool:
    """A process was heard of. Returns whether it had been asleep: then its tickets stand in line again.

    A ticket that missed its call comes back only when its waiter itself was heard of (`own`): a process can be well and
    one of its waiters not (a blocked event loop), and that one must not cost the line a claim at every heartbeat.
    """
    sessions = records.sessions
    asleep: bool = sessions.get(session) == 1
    sessions.put(session, 0, now + SESSION)
    if not asleep and (own is None or not own.hidden):
        return False
    if asleep:
        for _, id in list(records.session_tickets[session].scan()):
            ticket = _ticket(records, id)
            if ticket.hidden == ASLEEP:
                _enter(records, _marked(ticket, ticket.called, 0))
    if own is not None and own.hidden and (not asleep or own.hidden != ASLEEP):
        _enter(records, _marked(own, own.called, 0))
        return True
    return asleep


def _put_to_sleep(records: Records, session: str) -> None:
    sessions = records.sessions
    if sessions.get(session) != 0:
        return
    sessions[session] = 1
    for _, id in list(records.session_tickets[session].scan()):
        ticket = _ticket(records, id)
        if not ticket.called and not ticket.hidden:
            _leave(records, ticket)
            records.tickets[id] = _marked(ticket, 0, ASLEEP)


# --- standing in line -------------------------------------------------------------------------------------------


def stand(
    records: Records, now: int, plan: Plan, id: str, session: str, holder: str | None, lease: int, remembered: bool,
    attempt: str = "",
) -> bool:  # fmt: skip
    """A new ticket at the end of its lane. Returns whether the line must be served: it may be the first of its lane."""
    known = records.sessions.get(session) is not None
    woke = hear(records, now, session)
    rank = plan.rank
    place = len(records.tickets) + 1
    arrivals, tiers, timer, timer_at, blocked, turns, limit, free_at = line_state(records)
    ticket = _new(Ticket, (
        id, session, plan.ref, plan.lane, rank, rank, now, arrivals, place, plan.template.weight, holder, lease, remembered,
        0, 0, attempt,
    ))  # fmt: skip
    if rank >= tiers:
        turns = (*turns, *(0.0,) * (rank + 1 - tiers))
        tiers = rank + 1
    records.line_state["meta"] = _new(LineState, (arrivals + 1, tiers, timer, timer_at, blocked, turns, limit, free_at))
    records.session_tickets[session].put(id, None, arrivals)
    if rank > 0:
        records.patience.put(id, None, now + plan.policy.patience)
    behind = _enter(records, ticket)
    _count(records, place)
    if woke or not (known and behind) or now >= timer_at:
        return True
    # Behind another of its own lane, of a process that stands in line already: no turn has changed. Its patience
    # may end before anybody looks.
    return rank > 0 and now + plan.policy.patience < timer_at


def adopt(records: Records, ticket: Ticket, session: str, attempt: str = "") -> Ticket:
    """Its waiter came again, in another process or by another attempt: the ticket is theirs now, in its old place."""
    if ticket.session == session:
        ticket = records.tickets[ticket.id] = ticket._replace(attempt=attempt)
        return ticket
    mine = records.session_tickets[ticket.session]
    mine.delete(ticket.id)
    if not mine:
        records.drop("of", ticket.session)
        records.sessions.delete(ticket.session)
    ticket = ticket._replace(session=session, attempt=attempt)
    records.tickets[ticket.id] = ticket
    records.session_tickets[session].put(ticket.id, None, ticket.arrival)
    return ticket


def remove(records: Records, now: int, ticket: Ticket) -> None:
    """A ticket leaves for good: taken, cancelled, or its process died. What a call holds is given back."""
    if ticket.called:
        _take_off(records, now, ticket)
    elif not ticket.hidden:
        _leave(records, ticket)
        if ticket.lane:
            freed(records, now, recall(records, ticket.ref).steps)
    _forget(records, ticket)
    _count(records, len(records.tickets))


def _forget(records: Records, ticket: Ticket) -> None:
    """A ticket that stands in no lane and has no call is no more, and with the last of its process that."""
    records.tickets.delete(ticket.id)
    if ticket.tier:
        records.patience.delete(ticket.id)
    mine = records.session_tickets[ticket.session]
    mine.delete(ticket.id)
    if not mine:
        records.drop("of", ticket.session)
        records.sessions.delete(ticket.session)


def _count(records: Records, tickets: int) -> None:
    """So many stand in line, the head says from now on."""
    head = records.head
    if tickets:
        head.tickets = tickets
        head.quiet = False
    else:
        head.amend(tickets=0)
        # No ticket waits: whose turn it would have been says nothing any more.
        for kind in ("line", "rest"):
            for name in records.names(kind):
                records.drop(kind, name)


def _enter(records: Records, ticket: Ticket) -> bool:
    """Into its lane. Returns whether others of that lane were there."""
    records.tickets[ticket.id] = ticket
    lane = _lane_of(ticket)
    queue = records.lane[lane]
    queue.put(ticket.id, None, ticket.arrival)
    row = records.lanes.get(lane)
    if row is None:
        state = line_state(records)
        rest = records.resting_lanes[f"{ticket.tier}"]
        tag = max(state.turns[ticket.tier], rest.get(lane) or 0.0)
        rest.delete(lane)
        # Of lanes that come at the same turn, the first to come goes first.
        records.line_state["meta"] = state._replace(turns=_turned(state.turns, ticket.tier, 0.0, INSTANT))
        _make_ready(records, lane, tag)
        ahead.entered(records, ticket, True)
        return False
    ahead.entered(records, ticket, False)
    if row[1] and queue.first()[1] == ticket.id:  # type: ignore[index]
        # It came back to the front of a parked lane: look at it afresh.
        _unpark(records, lane, row)
    return True


def _turned(turns: tuple[float, ...], tier: int, least: float, by: float) -> tuple[float, ...]:
    """The virtual time of a tier has moved on: to `least` at least, and by so much more."""
    was = turns[tier]
    turn = (was if was > least else least) + by
    return (turn,) if len(turns) == 1 else (*turns[:tier], turn, *turns[tier + 1 :])


def _leave(records: Records, ticket: Ticket) -> None:
    """Out of its lane. The lane's turn does not move: nothing was taken."""
    lane = _lane_of(ticket)
    queue = records.lane[lane]
    was_first = queue.first() == (ticket.arrival, ticket.id)
    queue.delete(ticket.id)
    row = records.lanes.get(lane)
    ahead.left(records, ticket, not queue)
    if not queue:
        _close(records, lane, ticket, row[0], row[1])
    elif was_first and row[1]:
        _unpark(records, lane, row)
    due = records.looks_due
    if row[1] and due.get(row[1]) is not None:
        due.put(row[1], 1, 0)  # the lane parked behind it is looked at again, at the serving that follows


def _advance(records: Records, lane: str, ticket: Ticket, turns: tuple[float, ...]) -> tuple[float, ...]:
    """The first of a ready lane was called: its lane's turn moves on by what the ticket takes. Returns the tiers' turns."""
    tier, weight = ticket.tier, ticket.weight
    queue = records.lane[lane]
    queue.delete(ticket.id)
    tag = records.lanes.get(lane)[0]
    # Time also moves by what each of those who wait has got in the mean: whoever comes later stands behind those who
    # were here, however many come.
    turns = _turned(turns, tier, tag, weight / (records.head.tickets or 1))
    ahead.left(records, ticket, not queue)
    if not queue:
        _close(records, lane, ticket, tag + weight, "")
    else:
        _make_ready(records, lane, tag + weight)
    rest = records.resting_lanes[f"{tier}"]
    while rest and (first := rest.first()) is not None and first[0] <= turns[tier]:
        rest.delete(first[1])
    return turns


def _close(records: Records, lane: str, ticket: Ticket, tag: float, parked: str) -> None:
    if parked:
        _drop_from(records, "parked", parked, lane)
    else:
        _drop_from(records, "ready", f"{ticket.tier}.{ticket.rank}", lane)
    records.lanes.delete(lane)
    records.drop("lane", lane)
    # A lane that comes back soon goes on where it was: leaving and coming again is no way to the front.
    records.resting_lanes[f"{ticket.tier}"].put(lane, tag, tag)


def _drop_from(records: Records, kind: str, name: str, lane: str) -> None:
    space = records.space(kind, name)
    space.delete(lane)
    if not space:
        records.drop(kind, name)
        if kind == "parked":
            records.looks_due.delete(name)


def _make_ready(records: Records, lane: str, tag: float) -> None:
    records.lanes[lane] = (tag, "")
    records.ready[_class_of(lane)].put(lane, None, tag)


@lru_cache(1024)
def _class_of(lane: str) -> str:
    return lane[: lane.index(".", lane.index(".") + 1)]


def _tier_of(lane: str) -> int:
    return int(lane.partition(".")[0])


def _order(lane: str, tag: float) -> float:
    """Where a lane stands among those parked at the same member."""
    return _tier_of(lane) * TIER + tag


def _park(records: Records, lane: str, member: str, until: int) -> None:
    lanes = records.lanes
    tag = lanes.get(lane)[0]
    _drop_from(records, "ready", _class_of(lane), lane)
    lanes[lane] = (tag, member)
    parked = records.parked[member]
    parked.put(lane, None, _order(lane, tag))
    due = records.looks_due
    # The first is waited for; the lane behind it is looked at when that one has gone.
    if due.get(member) is None or parked.first()[1] == lane:  # type: ignore[index]
        due.put(member, 1, until)


def _unpark(records: Records, lane: str, row: Any) -> None:
    _drop_from(records, "parked", row[1], lane)
    _make_ready(records, lane, row[0])


def freed(records: Records, now: int, steps: Steps) -> None:
    """Something came back on these limits: lanes parked at one of them are looked at again."""
    for step in steps:
        # Every member with a parked lane is due at some time.
        if step.by and (due := records.looks_due).get(step.member) is not None:
            due.put(step.member, 1, now)


def is_certain(records: Records, now: int, plan: Plan, call_ends: int) -> bool:
    """Whether taking a call changes no turn, so that the line need not be served.

    What was held is charged instead. On rates that all share, that never lets anybody go sooner than was reckoned with
    the hold; and the ticket that keeps the timer asks before the call would have run out.
    """
    return not plan.lease and not plan.lane and now < line_state(records).timer_at < call_ends


def is_early(records: Records, now: int, plan: Plan) -> bool:
    """Whether a confirmation changes no turn yet: what it gives back comes free `per` from now at the soonest, and
    the ticket that keeps the timer asks before that."""
    return not plan.lane and now < line_state(records).timer_at <= now + plan.template.soonest


# --- serving ----------------------------------------------------------------------------------------------------


def serve(records: Records, now: int, asker: Asker | None = None) -> Any:
    """Do all that is due: give back calls, bury sessions, end patience, call what fits, and name the keeper of the timer.

    An `asker` is here: when its ticket is the one to be called, it takes what it asks for instead, and that is returned.
    """
    calls = records.calls
    while calls and (first := calls.first()) is not None and first[0] <= now:
        _give_back(records, now, first[1])
    done = _bury(records, now)
    state = line_state(records)
    if not done:
        # No ticket is called while dead ones may be among the first. The next command goes on, and the timer has one come.
        _keep_timer(records, now, state, state.turns, [(now, "", _any_waiting(records))], ((0, 0),), ("sessions",))
        return None
    if state.tiers > 1:
        young = records.patience
        while (first := young.first()) is not None and first[0] <= now:
            _promote(records, first[1])
        state = line_state(records)
    head = records.head
    if head.overrides:
        lapse(records)
    if head.paused > now:
        waits = [(head.paused, "", _any_waiting(records))]
        _keep_timer(records, now, state, state.turns, waits, (), ("calls", "sessions", "young"))
        return None
    taken = _call_all(records, now, state, head.overrides, asker)
    if taken is not None:
        _count(records, len(records.tickets))
    return taken


def _bury(records: Records, now: int) -> bool:
    """Tickets of processes that were not heard of leave, so many at a time. Returns whether none of them is left."""
    sessions, left = records.sessions, BURIED
    while (first := sessions.first()) is not None and first[0] <= now:
        session = first[1]
        ids = [id for _, (_, id) in zip(range(left + 1), records.session_tickets[session].scan(), strict=False)]
        for id in ids[:left]:
            remove(records, now, _ticket(records, id))
        if len(ids) > left:
            sessions[session] = 1  # none of its tickets is to keep the timer
            return False
        sessions.delete(session)
        left -= len(ids)
        if ids:
            # Should it live after all, it learns so; where its socket is all that is left of it, that is found and removed.
            records.wakes.append(Wake(session, ids[-1]))
    return True


def _take_off(records: Records, now: int, ticket: Ticket) -> None:
    """A call ends: what it holds is free again."""
    steps = recall(records, ticket.ref).steps
    let_go(records, now, steps, (ticket.id, 0, None))
    if ticket.lane:
        freed(records, now, steps)
    records.calls.delete(ticket.id)


def _give_back(records: Records, now: int, id: str) -> None:
    ticket = _ticket(records, id)
    _take_off(records, now, ticket)
    _put_to_sleep(records, ticket.session)
    records.tickets[id] = _marked(ticket, 0, MISSED)


def take_back(records: Records, now: int) -> None:
    """All calls are taken back: their tickets stand in line again, in their old places."""
    for _, id in list(records.calls.scan()):
        ticket = _ticket(records, id)
        let_go(records, now, recall(records, ticket.ref).steps, (id, 0, None))
        records.calls.delete(id)
        _enter(records, _marked(ticket, 0, 0))


def _promote(records: Records, id: str) -> None:
    ticket = _ticket(records, id)
    records.patience.delete(id)
    if ticket.called or ticket.hidden:
        records.tickets[id] = ticket._replace(tier=0)
        return
    _leave(records, ticket)
    _enter(records, ticket._replace(tier=0))


def _call_all(records: Records, now: int, state: LineState, overrides: int, asker: Asker | None) -> Any:
    own = "" if asker is None else asker.id
    taken = None
    due, ready = records.looks_due, records.ready
    blocked: list[tuple[int, int]] = []
    waits: list[tuple[int, str, Ticket | None]] = []
    looked: dict[str, str] = {}
    tiers, turns = state.tiers, state.turns
    # Mostly no lane is parked, and none will be.
    parked = bool(due)
    tier = 0
    while tier < tiers:
        if parked and (back := _look_again(records, now, due, looked)) < tier:
            tier = back
            while blocked and blocked[-1][0] >= tier:  # they are found again, if they have to wait again
                blocked.pop()
                waits.pop()
        best = ready["0.0"].first() if tiers == 1 else _next_lane(ready, tier, tiers, blocked)
        if best is None:
            tier += 1
            continue
        lane = best[1]
        ticket = _ticket(records, records.lane[lane].first()[1])  # type: ignore[index]
        plan = asker.plan if asker is not None and ticket.ref is asker.plan.ref else recall(records, ticket.ref)
        steps = plan.steps
        if overrides:
            steps = plan.current(records)
            if plan.too_large(steps) is not None:
                state = _send_away(records, now, ticket, state, turns)  # an override has made it impossible
                turns = state.turns
                continue
        member = None
        if ticket.lane:
            member = _ahead(records, steps, _order(lane, records.lanes.get(lane)[0]))
        try:
            at, step = (now + 1, None) if member else blocked_by(records, now, steps)
        except KindChanged:  # since it came: a reset, or a ticket of the other kind was called first
            state = _send_away(records, now, ticket, state, turns)
            turns = state.turns
            continue
        if at <= now:
            if asker is not None and ticket.id == own:
                taken = asker.take(records, now, steps)
                _forget(records, ticket)
            else:
                _call(records, now, ticket, plan.policy.claim, steps)
            turns = _advance(records, lane, ticket, turns)
            if ticket.lane:
                freed(records, now, steps)
        elif member or (step is not None and step.by):
            member = member or step.member  # type: ignore[union-attr]
            _park(records, lane, member, at)
            parked = True
            came_from = looked.pop(lane, member)
            if came_from != member and due.get(came_from) is not None:
                due.put(came_from, 1, now)  # it made no use of the room there: the next may
        else:
            assert step is not None
            blocked.append((tier, max(0, step.rank)))
            waits.append((at, step.base, ticket))
            if tiers == 1:  # there is no other class that could go by it
                if parked:
                    _look_again(records, now, due, looked)
                break
    if parked and not waits and (first := due.first()) is not None:
        lane = records.parked[first[1]].first()[1]  # type: ignore[index]
        head = _ticket(records, records.lane[lane].first()[1])  # type: ignore[index]
        waits.append((first[0], first[1].partition("|")[0].partition("@")[0], head))
    clocks = CLOCKS if parked or tiers > 1 else ("calls", "sessions")
    if overrides:
        clocks = (*clocks, "terms")
    _keep_timer(records, now, state, turns, waits, tuple(blocked), clocks)
    return taken


def _send_away(records: Records, now: int, ticket: Ticket, state: LineState, turns: tuple[float, ...]) -> LineState:
    """A ticket that has become impossible leaves the line. Its waiter asks again, and is told why; no other command is."""
    records.line_state["meta"] = state._replace(turns=turns)
    remove(records, now, ticket)
    records.wakes.append(Wake(ticket.session, ticket.id))
    return line_state(records)


def _look_again(records: Records, now: int, due: Space, looked: dict[str, str]) -> int:
    """Of every member that may have room now, the first parked lane gets ready; the next follows when that is called.

    Returns the highest tier that has got one, whose turn it is then.
    """
    tier = NEVER
    while (first := due.first()) is not None and first[0] <= now:
        parked = records.parked[first[1]]
        lane = parked.first()
        due.delete(first[1])
        if lane is None:
            continue
        _unpark(records, lane[1], records.lanes.get(lane[1]))
        looked.setdefault(lane[1], first[1])
        tier = min(tier, _tier_of(lane[1]))
        if parked:
            # It is looked at again when this one is called or leaves; and at last by itself.
            due.put(first[1], 1, now + SECOND)
    return tier


def _next_lane(ready: Spaces, tier: int, tiers: int, blocked: list[tuple[int, int]]) -> tuple[float, str] | None:
    """The tag and the name of the lane whose turn it is, if none that waits is before it."""
    behind = min([from_rank for _, from_rank in blocked]) if blocked else NEVER
    best = None
    for rank in range(tiers) if tier == 0 else (tier,):
        if rank >= behind:
            break
        first = ready[f"{tier}.{rank}"].first()
        if first is not None and (best is None or first < best):
            best = first
    return best


def _call(records: Records, now: int, ticket: Ticket, claim: int, steps: Steps) -> None:
    hold(records, now, steps, (ticket.id, now + claim, (ticket.ref, now, 0, ticket.holder)))
    records.tickets[ticket.id] = _marked(ticket, now + claim, 0)
    records.calls.put(ticket.id, None, now + claim)
    records.wakes.append(Wake(ticket.session, ticket.id))


def _with_calls_out(records: Records) -> set[str]:
    """The processes that have a call to take (a few of them will do)."""
    calls = [id for _, (_, id) in zip(range(8), records.calls.scan(), strict=False)]
    return {_ticket(records, id).session for id in calls}


def _any_waiting(records: Records, but_not: set[str] | frozenset[str] = frozenset()) -> Ticket | None:
    """Some ticket that stands in a lane, to keep the timer."""
    sessions = records.sessions
    for _, session in sessions.scan():
        if session not in but_not and sessions.get(session) == 0:
            for _, id in records.session_tickets[session].scan():
                ticket = _ticket(records, id)
                if not ticket.called and not ticket.hidden:
                    return ticket
    return None


def _keep_timer(
    records: Records,
    now: int,
    state: LineState,
    turns: tuple[float, ...],
    waits: list[tuple[int, str, Ticket | None]],
    blocked: tuple[tuple[int, int], ...],
    clocks: tuple[str, ...],
) -> None:
    """The first in order keeps the timer: for its own moment, and for all that happens by itself before."""
    kinds = records.kinds
    arrivals, tiers, was, was_at, _, _, _, _ = state
    holder, limit, at, free_at = None, "", NEVER, now
    if waits:
        free_at, limit, holder = waits[0]
        at = free_at if len(waits) == 1 else min([at for at, _, _ in waits])
    for kind in clocks:
        if (clock := kinds[kind][""]) and (first := clock.first()) is not None and first[0] < at:
            at = first[0]
    timer = ""
    if holder is not None:
        if len(records.sessions) > 1 and holder.session in (called := _with_calls_out(records)):
            # Its process has a call to take, and may be dead: a ticket of another process keeps the timer.
            holder = _any_waiting(records, called) or holder
        timer = holder.id
        if timer != was or at < was_at:
            records.wakes.append(Wake(holder.session, timer, max(0, at - now)))
    records.line_state["meta"] = _new(LineState, (arrivals, tiers, timer, at, blocked, turns, limit, free_at))
