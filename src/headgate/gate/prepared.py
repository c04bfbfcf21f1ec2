"""The commonest asks and endings, made ready: where the state is in this process, each is one call.

The rules are in `Admit` and `Settle`. What is here leaves the same records sooner, for asks that cost 1, say nothing but
their key, and must pass at most one rate and one limit of slots, while the line is empty and nothing is paused or
overridden.
Everything else is left to those two; `tests/gate/test_prepared.py` holds them together.

Locking looks the same everywhere: `with` would take twice as long. A KeyboardInterrupt may come right after `acquire`, so
that is inside the `try`, and a lock that knows its owner tells whether it was taken. At the end of the interpreter a frozen
thread may hold it: then a command is left to find out.
"""

from __future__ import annotations

import itertools

from ..background import is_ending
from ..kernel.commands.base import REAP_MASK
from ..kernel.limits import Bucket
from ..kernel.model import Wait
from .permit import NOT_LEASED, Terms
from .stamping import LIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..kernel.plan import Plan, PlanTemplate
    from ..stores.base import Here
    from .base import BaseGate
    from .permit import BasePermit

    Ask = Callable[..., BasePermit | Wait | None]
    Finish = Callable[[str], bool]

numbers = itertools.count()

_new = object.__new__


def prepare_ask(gate: BaseGate, here: Here, template: PlanTemplate) -> Ask | None:
    """An ask of this template as a function of what its key decides; without a key it is called with nothing.

    It gives a permit, or the moment for which it has to wait; None: ask with a command.
    """
    if not template.plain or template.others or len(template.slots) > 1:
        return None
    if template.slots:
        return _ask_slot(gate, here, template)
    return (
        _ask_bucket(gate, here, template)
        if isinstance(template.steps[0].limit, Bucket)
        else _ask_rate(gate, here, template)
    )


def places(plan: Plan) -> tuple[Plan, str, str, str]:
    """What the key of a plan decides: where its rate and its slots are counted, and how its ids end."""
    return (
        plan,
        plan.final[1] if plan.final is not None else "",
        plan.slots[0][0] if plan.slots else "",
        f"~{plan.lane}" if plan.key and plan.lease else "",
    )


def _ask_rate(gate: BaseGate, here: Here, template: PlanTemplate) -> Ask:
    records, ticks, offset, (acquire, release, owned) = here.records, here.ticks, here.offset, here.lock
    kind, store = gate._permit, gate._store
    assert template.final is not None
    take, name = template.final[0], template.steps[0].base
    whole, *where = places(template.whole) if template.whole else (None, "", "", "")

    def ask(plan: Any = whole, rate: str = where[0], slot: str = "", end: str = "") -> BasePermit | Wait | None:
        if is_ending():
            return None
        try:
            acquire()
            now = ticks() // 1000 + offset
            head = records.head
            seq = head.seq
            if not head.quiet or not seq & REAP_MASK:
                release()
                return None
            if now < head.now:
                now = head.now
            at = take(records, now, rate)
            if at > 0:
                release()
                return Wait(at, name, 1, None, now)
            seq += 1
            head.seq = seq
            head.now = now
            release()
        except BaseException:
            if owned():
                release()
            raise
        permit = _new(kind)  # as in `hand_out`
        permit._gate = gate
        permit._store = store
        permit._plan = plan
        permit._at = now
        permit._expires = 0
        permit._fence = seq
        permit._worth = at < 0
        permit._state = LIVE
        permit._finish = None
        permit._terms = NOT_LEASED
        permit.id = ""
        return permit

    return ask


def _ask_bucket(gate: BaseGate, here: Here, template: PlanTemplate) -> Ask:
    """`_ask_rate` with `Bucket.taker` written out, for the commonest gate of all."""
    records, ticks, offset, (acquire, release, owned) = here.records, here.ticks, here.offset, here.lock
    kind, store = gate._permit, gate._store
    step = template.steps[0]
    limit, cost, value, name = step.limit, step.cost, step.value, step.base
    assert isinstance(limit, Bucket)
    assert template.final is not None
    (usable, per_unit), drain, cost, take = limit.in_force(value), limit.drain, float(cost), template.final[0]
    whole, *where = places(template.whole) if template.whole else (None, "", "", "")

    def ask(plan: Any = whole, rate: str = where[0], slot: str = "", end: str = "") -> BasePermit | Wait | None:
        if is_ending():
            return None
        try:
            acquire()
            now = ticks() // 1000 + offset
            head = records.head
            seq = head.seq
            states = records.states
            state = states.get(rate)
            if not head.quiet or not seq & REAP_MASK or state is None or state[0] != "bucket":
                release()
                return None
            if now < head.now:
                now = head.now
            _, used, last, held, _, promised, floor = state
            elapsed = now - last
            if (used + held + cost - usable) * per_unit > elapsed or promised or elapsed < 0 or floor is not None:
                at = take(records, now, rate)
                if at > 0:
                    release()
                    return Wait(at, name, 1, None, now)
            else:
                used -= elapsed / per_unit
                states[rate] = ("bucket", used + cost if used > 0.0 else cost, now, held, drain, 0, None)
            seq += 1
            head.seq = seq
            head.now = now
            release()
        except BaseException:
            if owned():
                release()
            raise
        permit = _new(kind)  # as in `hand_out`
        permit._gate = gate
        permit._store = store
        permit._plan = plan
        permit._at = now
        permit._expires = 0
        permit._fence = seq
        permit._worth = False
        permit._state = LIVE
        permit._finish = None
        permit._terms = NOT_LEASED
        permit.id = ""
        return permit

    return ask


def _ask_slot(gate: BaseGate, here: Here, template: PlanTemplate) -> Ask:
    records, ticks, offset, (acquire, release, owned) = here.records, here.ticks, here.offset, here.lock
    kind, store, keeper, length, number = gate._permit, gate._store, gate._keeper, template.lease, numbers.__next__
    take = None if template.final is None else template.final[0]
    name = next((step.base for step in template.steps if not step.limit.leased), "")
    most, terms = int(template.slots[0][2]), Terms(False, length, None)
    whole, *where = places(template.whole) if template.whole else (None, "", "", "")
    finish = _prepare_finish(gate, here, where[1]) if whole else None

    def ask(
        plan: Any = whole, rate: str = where[0], slot: str = where[1], end: str = where[2]
    ) -> BasePermit | Wait | None:
        at = 0
        if is_ending():
            return None
        try:
            acquire()
            now = ticks() // 1000 + offset
            head = records.head
            seq = head.seq
            held = records.leases[slot]
            state = records.states.get(slot)
            # Occupancy is the number of leases. When in doubt whether one of them has expired, or whether this is the limit
            # that was here before, the limit itself decides.
            if not head.quiet or not seq & REAP_MASK or len(held) > most or state is None or state[0] != "concurrency":
                release()
                return None
            if now < head.now:
                now = head.now
            if take is not None:
                at = take(records, now, rate)
                if at > 0:
                    release()
                    return Wait(at, name, 1, None, now)
            seq += 1
            head.seq = seq
            head.now = now
            expires = now + length
            id = f"{store.session}-{number()}{end}"
            held[id] = (plan.ref, now, seq, None)  # `held.put`, for one that is not there yet
            held.fresh[id] = expires
            release()
        except BaseException:
            if owned():
                release()
            raise
        permit = _new(kind)  # as in `hand_out`
        permit._gate = gate
        permit._store = store
        permit._plan = plan
        permit._at = now
        permit._expires = expires
        permit._fence = seq
        permit._worth = at < 0
        permit._state = LIVE
        permit._finish = None if at else finish
        permit._terms = terms
        permit.id = id
        keeper.young[id] = permit  # as in `Keeper.watch`
        if length < keeper.shortest:
            keeper.watch(permit, length)
        return permit

    return ask


def _prepare_finish(gate: BaseGate, here: Here, slot: str) -> Finish:
    """The end with `ok` of a permit that need not be confirmed, by its id. False: end it with a command."""
    records, ticks, offset, (acquire, release, owned) = here.records, here.ticks, here.offset, here.lock
    keeper = gate._keeper

    def finish(id: str) -> bool:
        if is_ending():
            return False
        try:
            acquire()
            now = ticks() // 1000 + offset
            head = records.head
            seq = head.seq
            held = records.leases[slot]
            scores = held.fresh
            if id not in scores:
                scores = held.scores
            expires = scores.get(id, 0)
            if not head.quiet or not seq & REAP_MASK or expires <= now or expires <= head.now:
                release()
                return False
            del held[id], scores[id]  # `held.delete`
            head.seq = seq + 1
            if now > head.now:
                head.now = now
            # `Keeper.unwatch`, under the lock: a heartbeat that does not find the lease must not take it for lost.
            if keeper.young.pop(id, None) is None:
                keeper.live.pop(id, None)
            release()
        except BaseException:
            if owned():
                release()
            raise
        return True

    return finish
