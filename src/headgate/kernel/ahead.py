"""PURE. How much stands in line before an ask, and when that will have gone.

Beside the line's state there is one record more, `queued`: per tier how many tickets stand in lanes, in how many lanes, and
what they cost: `(tickets, lanes, mixed, ((unit, amount), …))`. The amounts are those of one ticket while all are alike, and
the sums of all from the first on that is not (`mixed`), until the tier is empty. A line that an earlier version has left
has no such record: then those ahead are taken to be like the ask.
"""

from __future__ import annotations

from .model import EARLIEST, ESTIMATE, EXACT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NamedTuple

    from .line import Ticket
    from .plan import Plan, Step, Steps
    from .records import Records

    class Ahead(NamedTuple):
        """What stands before an ask."""

        #: Tickets that go before it, and those of them that are of its own key.
        tickets: int
        own: int
        #: What one of them costs, by unit: in the mean, where they are not all alike.
        size: Mapping[str, float]
        #: All of them ask for what it does, and there is neither a class nor a key.
        alike: bool
else:
    from collections import namedtuple

    Ahead = namedtuple("Ahead", "tickets own size alike")

_EMPTY = (0, 0, 0, ())

#: From its parts: naming them takes longer.
_new = tuple.__new__


def entered(records: Records, ticket: Ticket, opened: bool) -> None:
    """A ticket stands in its lane from now on; `opened` where it is the first there."""
    kept: Any = records.line_state.get("queued") or ()
    if len(kept) == 1 and kept[0][3] == ticket.ref[2] and not kept[0][2] and not ticket.tier:
        tickets, lanes, _, units = kept[0]  # one more of the same, as most are
        records.line_state["queued"] = ((tickets + 1, lanes + opened, 0, units),)
        return
    rows = list(kept)
    while len(rows) <= ticket.tier:
        rows.append(_EMPTY)
    tickets, lanes, mixed, units = rows[ticket.tier]
    costs = ticket.ref[2]
    if not tickets:
        mixed, units = 0, tuple(costs)
    elif mixed or (units != costs and dict(units) != dict(costs)):
        if not mixed:
            mixed, units = 1, tuple((unit, amount * tickets) for unit, amount in units)
        units = _added(units, costs, 1)
    rows[ticket.tier] = (tickets + 1, lanes + opened, mixed, units)
    records.line_state["queued"] = tuple(rows)


def left(records: Records, ticket: Ticket, closed: bool) -> None:
    """A ticket no longer stands in its lane; `closed` where it was the last there."""
    rows: Any = records.line_state.get("queued") or ()
    if len(rows) <= ticket.tier or not rows[ticket.tier][0]:
        return
    tickets, lanes, mixed, units = rows[ticket.tier]
    rows = list(rows)
    if mixed:
        units = _added(units, ticket.ref[2], -1)
    rows[ticket.tier] = (tickets - 1, max(0, lanes - closed), mixed, units) if tickets > 1 else _EMPTY
    records.line_state["queued"] = tuple(rows)


def _added(units: Any, costs: Any, sign: int) -> tuple[tuple[str, float], ...]:
    more = dict(costs)
    known = tuple((unit, amount + sign * more.pop(unit, 0.0)) for unit, amount in units)
    return (*known, *((unit, sign * cost) for unit, cost in more.items()))


def ahead_of(records: Records, plan: Plan) -> Ahead:
    """What stands before a new ask: the tickets of its class and of those above, each lane of them with its fair turns."""
    rows: Any = records.line_state.get("queued") or ()
    own = dict(plan.ref[2])
    if len(rows) == 1 and not plan.lane and not plan.policy.priorities:
        tickets, _, mixed, units = rows[0]
        if tickets and not mixed and units == plan.ref[2]:
            return _new(Ahead, (tickets, tickets, own, True))
    rows = rows[: plan.rank + 1]
    tickets = lanes = 0
    alike = not plan.policy.priorities and not plan.lane
    sums: dict[str, float] = {}
    for count, open_lanes, mixed, units in rows:
        if count:
            tickets += count
            lanes += open_lanes
            alike = alike and not mixed and dict(units) == own
            for unit, amount in units:
                sums[unit] = sums.get(unit, 0.0) + (amount if mixed else amount * count)
    if not tickets:
        return Ahead(records.head.tickets, records.head.tickets, own, False)
    size = own if alike else {unit: total / tickets for unit, total in sums.items()}
    if not plan.lane:
        return Ahead(tickets, tickets, size, alike)
    # Lanes take turns: before it each of them has as many turns as its own lane has tickets, and one more.
    mine = 0
    if records.lanes.get(f"{plan.rank}.{plan.rank}.{plan.lane}") is not None:
        mine = -(-tickets // max(1, lanes))
    return Ahead(min(tickets, lanes * (mine + 1)), mine, size, False)


def goes(records: Records, now: int, plan: Plan, steps: Steps, ahead: Ahead) -> tuple[int, Step | None, str]:
    """When those ahead will have gone and the ask can go, the limit that is last, and how sure that is.

    Exact where all are alike and one rate alone is waited for. Of slots nobody knows when they are released: what is told
    is the first moment at which one ends by itself.
    """
    at, last, waits, slots, far = now, None, 0, False, False
    for step in steps:
        limit = step.limit
        count = ahead.own if step.by else ahead.tickets
        size = 1.0 if limit.leased else ahead.size.get(limit.unit, step.cost)
        then = limit.after(records, now, step.member, step.cost, step.value, count, size)
        far = far or limit.is_far(step.value, count, size)
        if then > now:
            waits += 1
            slots = slots or limit.leased
        if then > at:
            at, last = then, step
    if slots:
        return at, last, EARLIEST
    return at, last, EXACT if ahead.alike and waits <= 1 and not (far or plan.lease) else ESTIMATE


def paced(free_at: int, steps: Steps, ahead: Ahead) -> int:
    """The same at a glance, for an ask that stands in line: the first goes at `free_at`, others at the long-run rate."""
    pace = 0.0
    for step in steps:
        if not step.limit.leased:
            size = ahead.size.get(step.limit.unit, step.cost)
            count = (ahead.own if step.by else ahead.tickets) - 1  # its own ticket stands there too
            pace = max(pace, count * size * step.limit.pace(step.value))
    return free_at + int(pace)
