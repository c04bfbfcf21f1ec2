"""PURE. Waiting, giving up, cleaning up: as generators that yield what they need done, driven in `gate.py`.

A driver answers each effect: `Execute` with the command's reply, `AwaitWake` with what woke the waiter, `Sleep` and `Undo`
with nothing. When the driver is interrupted while it waits (cancellation, KeyboardInterrupt), it throws that into the flow,
which undoes what it has left in the store, and lets it pass on.
"""

from __future__ import annotations

from ..errors import Denied, LeaseLost, PolicyChanged
from .commands import Cancel, Stamp, Stand
from .model import NEVER, SECOND, Grant, Refusal, Wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from .commands import Command
    from .plan import Plan

    Effect = "Execute | AwaitWake | Sleep | Undo"
    Flow = Generator["Execute | AwaitWake | Sleep | Undo", Any, Any]

#: What an `AwaitWake` is answered when nothing woke it.
TIMED_OUT = -1

#: What an `AwaitWake` is answered when the waiter is sent away, and its ticket is to stay for when it comes again.
SENT_AWAY = -2

#: What an `AwaitWake` is answered when the gate is closed under the waiter.
CLOSED = -3

#: How often a call is stamped at most whose client has become late again by the time that the reply is there.
STAMPS = 3


# Plain classes: making a dataclass takes as long as reading all of this package's small files.


class Execute:
    """Have the store decide a command."""

    __slots__ = ("command",)

    def __init__(self, command: Command) -> None:
        self.command = command


class AwaitWake:
    """Sleep until the ticket's process is woken for it, or for `delay` microseconds (None: as long as it takes).

    Answered with None (called), a delay after which to look again, TIMED_OUT, SENT_AWAY or CLOSED.
    """

    __slots__ = ("delay", "ticket")

    def __init__(self, ticket: str, delay: int | None) -> None:
        self.ticket = ticket
        self.delay = delay


class Sleep:
    """Sleep for so many microseconds."""

    __slots__ = ("delay",)

    def __init__(self, delay: int) -> None:
        self.delay = delay


class Undo:
    """Have the store decide a command on the way out. Must not wait, and must not fail the flow that ends."""

    __slots__ = ("command",)

    def __init__(self, command: Command) -> None:
        self.command = command


def acquire(
    plan: Plan,
    id: str,
    session: str,
    clock: Callable[[], int],
    *,
    holder: str | None = None,
    lease: int = 0,
    remembered: bool = False,
    timeout: int | None = None,
    max_delay: int | None = None,
    reply: Wait | None = None,
    attempt: str = "",
) -> Flow:
    """Wait for a permit. `clock` is any steady clock of this process in microseconds: time-outs are the waiter's own.

    Returns the grant, and the moment of `clock` at which it is charged, or somewhat before: when its ask was sent. `reply`
    is for an ask whose ticket already stands in line: what the same ask was answered a moment ago. `attempt` names this
    flow where its id is a caller's.
    """
    if plan.policy.waiting == "promise":
        return _promised(plan, id, clock, remembered, timeout, max_delay, attempt)
    return _in_line(plan, id, session, clock, holder, lease, remembered, timeout, reply, attempt)


def _in_line(
    plan: Plan,
    id: str,
    session: str,
    clock: Callable[[], int],
    holder: str | None,
    lease: int,
    remembered: bool,
    timeout: int | None,
    reply: Any,
    attempt: str,
) -> Flow:
    waits = timeout != 0
    stand = Stand(plan, id, holder, lease, waits=waits, session=session, remembered=remembered, attempt=attempt)
    ask = Execute(stand)
    asked = clock()
    deadline = None if timeout is None else asked + timeout
    standing = True
    try:
        if reply is None:
            reply = yield ask
        while isinstance(reply, Wait):
            told = clock()
            if timeout == 0:
                standing = False
                raise denied(plan, reply)
            delay = None if reply.check_at is None else max(0, reply.check_at - reply.now)
            while True:
                left = None if deadline is None else deadline - clock()
                if left is not None and left <= 0:
                    raise denied(plan, reply, waited=clock() - told)
                woken = yield AwaitWake(id, delay if left is None else left if delay is None else min(delay, left))
                if woken == SENT_AWAY:
                    standing = False
                    raise denied(plan, reply, waited=clock() - told)
                if woken == CLOSED:
                    raise Denied("the gate was closed", gate=plan.policy.name, limit=reply.limit)
                if woken is None or (woken == TIMED_OUT and (delay is None or left is None or delay <= left)):
                    break
                if woken != TIMED_OUT:
                    delay = woken
            stand.asked, asked = 0, clock()
            reply = yield ask
        standing = False
    finally:
        # Denied, cancelled or interrupted: no ticket, call or grant stays behind.
        if standing:
            yield Undo(undoing(plan, id, attempt, remembered))
    return granted(plan, reply), stand.asked or asked


def undoing(plan: Plan, id: str, attempt: str, remembered: bool) -> Cancel:
    """The cancel of an ask. One that is not remembered is decided in this process, and never arrives late."""
    return Cancel(plan.policy, id, attempt, answered=not remembered)


def _promised(
    plan: Plan,
    id: str,
    clock: Callable[[], int],
    remembered: bool,
    timeout: int | None,
    max_delay: int | None,
    attempt: str,
) -> Flow:
    """Reserve, and sleep until the time has come."""
    grant, delay, due = yield from reserve(plan, id, clock, remembered, timeout, max_delay, attempt)
    until = clock() + delay
    try:
        while (left := until - clock()) > 0:
            yield Sleep(left)
    except BaseException:
        from .commands import Settle

        if remembered:
            yield Undo(undoing(plan, id, attempt, remembered))
        else:
            yield Undo(Settle(plan, grant.at, "", "unsent", False))
        raise
    return grant, due


def reserve(
    plan: Plan,
    id: str,
    clock: Callable[[], int],
    remembered: bool,
    timeout: int | None,
    max_delay: int | None,
    attempt: str = "",
) -> Flow:
    """A time at once. Returns the grant, the delay to it in microseconds of the store's clock, and, like `acquire`, when it
    is charged."""
    asked = clock()
    longest = min((bound for bound in (timeout, max_delay) if bound is not None), default=NEVER)
    # The bound is relative, the command's is absolute in the store's time: `Stand` adds it up there.
    try:
        reply = yield Execute(Stand(plan, id, remembered=remembered, latest=longest, attempt=attempt))
    except BaseException:
        # The answer is lost, or nobody waits for it any more: no promise stays behind.
        if remembered:
            yield Undo(undoing(plan, id, attempt, remembered))
        raise
    grant = granted(plan, reply)
    delay = max(0, grant.at - grant.now)
    return grant, delay, asked + delay


def sent(plan: Plan, id: str, at: int, clock: Callable[[], int], fence: int = 0) -> Flow:
    """Stamp a permit whose grant is no longer fresh, and wait where others have filled a bucket meanwhile.

    Returns when it is charged, by the store's clock and by `clock`. Raises LeaseLost where the permit has ended.
    """
    # After a stamp half of the slack is the client's: what the reply took on its way is in it.
    fresh = 2 * plan.template.fresh
    stamps = 0
    stamp = Stamp(plan.policy, id, plan, at, fence=fence)
    while True:
        asked = clock()
        try:
            reply = yield Execute(stamp)
            if isinstance(reply, BaseException):
                raise reply
        except PolicyChanged:
            if stamp.plan is None:
                raise
            stamp = Stamp(plan.policy, id, fence=fence)  # the guard has other limits now, and the permit on record
            continue
        if isinstance(reply, Wait):
            stamp.at = reply.at if plan.policy.waiting == "promise" else reply.now
            yield Sleep(reply.at - reply.now)
            continue
        if reply.lost:
            raise LeaseLost(f"gate {plan.policy.name!r}: permit {id!r} had already ended, so its call must not be sent")
        stamp.at = reply.at
        stamps += 1
        if clock() - asked <= fresh or stamps >= (STAMPS if fresh else 1):
            return reply.at, asked


def granted(plan: Plan, reply: Any) -> Grant:
    """The grant, or the error that the reply stands for."""
    if isinstance(reply, Grant):
        return reply
    if isinstance(reply, BaseException):
        raise reply
    raise denied(plan, reply)


def denied(plan: Plan, reply: Wait | Refusal, waited: int | None = None) -> Denied:
    """`waited` is for a ticket that timed out in line: the microseconds since the reply, which is that much closer now."""
    gate = plan.policy.name
    if isinstance(reply, Refusal):
        after = None if reply.at >= NEVER else max(0, reply.at - reply.now) / SECOND
        return Denied(reply.reason, gate=gate, limit=reply.limit, retry_after=after)
    why = (
        "the gate is paused" if reply.reason == "paused" else "not now" if waited is None else "ran out of time in line"
    )
    position = reply.position if waited is not None or reply.reason == "line" else None
    after = max(0.0, reply.retry_after - (waited or 0) / SECOND)
    return Denied(why, gate=gate, limit=reply.limit, retry_after=after, position=position, timing=reply.timing)
