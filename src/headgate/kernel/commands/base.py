"""PURE. What every command is, and how each begins."""

from __future__ import annotations

from ...errors import figure
from ..head import began_at, is_another, is_epoch, new_epoch
from ..limits import KINDS, RateLimit
from ..model import NEVER, SECOND, Ended
from ..overrides import is_overridden
from .permits import REMEMBER, read_permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..plan import Plan, Step, Steps
    from ..records import Records

#: State that has run off is looked for once in so many commands, and so many records are looked at then.
REAP_EVERY = 256
REAP_MASK = REAP_EVERY - 1
REAP = 512

#: The spaces that belong to one state, and go with it.
SPACES = ("windows", "promised", "leases")

ENDED = Ended()
LOST = Ended(lost=True)


class Command:
    """One atomic operation on one gate."""

    __slots__ = ("gate",)
    gate: str
    #: False: it only looks, and a store need not let it write.
    writes = True

    def apply(self, now: int, records: Records) -> Any:
        raise NotImplementedError


def begin(now: int, records: Records) -> int:
    """The store's time, never backwards; and state that was lost is noticed here."""
    head = records.head
    seq = head.seq
    if now < head.now or seq < records.seen or not seq & REAP_MASK:
        return _begin_otherwise(max(now, head.now), records)
    head.seq = seq + 1
    head.now = now
    return now


def _begin_otherwise(now: int, records: Records) -> int:
    head = records.head
    seq = head.seq
    head.now = now
    if seq < records.seen:
        lose(now, records)
    else:
        head.seq = seq + 1
        if not head.epoch:
            head.epoch = records.told if is_epoch(records.told) else new_epoch(now, head.seq, records.told)
    if not seq & REAP_MASK:
        _reap(now, records)
    return now


def compare(records: Records, seen: int, told: str) -> bool:
    """Whether the head that was just read has lost state, by what this process was told before. `begin` notices it then."""
    head = records.head
    records.told = told
    # Every decision compares the number already, so that another epoch is told by it as well.
    records.seen = max(seen, head.seq + 1) if is_another(head.epoch, told) else seen
    return head.seq < records.seen


def lost_before(records: Records) -> int:
    """A lease that is missing and was granted before this moment went with lost state: its holder has not lost it."""
    head = records.head
    return head.lost_before if head.lost or is_another(head.epoch, records.told) else 0


def lose(now: int, records: Records) -> None:
    """State was lost. From now on rates come back with time, and live holders register again: see `head.py`."""
    head = records.head
    head.seq = records.seen + 1
    if not is_another(head.epoch, records.told):
        head.epoch = new_epoch(now, head.seq, records.told)
        head.lost_before = now
    elif not head.lost_before:
        head.lost_before = began_at(head.epoch)
    else:
        head.amend()  # another process has noticed it before, and nothing more is to be heeded
        return
    records.drop("assumed")
    head.amend(lost=now)


def _reap(now: int, records: Records) -> None:
    """Forget what no longer says anything: idle keys, ended permits. Their scores are lower bounds, checked here."""
    states = records.states
    for _ in range(REAP):
        first = states.first()
        if first is None or first[0] > now:
            break
        member = first[1]
        state = states.get(member)
        kind = KINDS[state[0]]
        until = kind.until(records, member, state)
        if until <= now and records.head.overrides and is_overridden(records, member):
            until = kind.until_overridden(state, until)  # at the value in force it may run off far more slowly
        if until <= now and kind.held(state):
            until = now + SECOND  # a call holds some of it, which has no end of its own
        if until > now:
            states.put(member, state, min(until, now + 3600 * SECOND))
            continue
        states.delete(member)
        for space in SPACES:
            records.drop(space, member)
    permits = records.space("permits")
    for _ in range(REAP):
        first = permits.first()
        if first is None or first[0] > now:
            return
        permit = permits.get(first[1])
        until = read_permit(permit).ends + REMEMBER
        if until > now:
            permits.put(first[1], permit, until)
        else:
            permits.delete(first[1])


def steps_in_force(records: Records, now: int, plan: Plan) -> Steps:
    """The plan's steps with the values in force, and lost state made up for."""
    head = records.head
    steps = plan.current(records) if head.overrides else plan.steps
    if lost := head.lost:
        assumed = records.space("assumed")
        over = now > lost + REMEMBER
        for step in steps:
            limit = step.limit
            if isinstance(limit, RateLimit) and now < lost + limit.per + limit.slack:
                over = False
            if assumed.get(step.member) is None:
                limit.assume_used(records, now, step.member, step.value, lost)
                assumed[step.member] = 1
        if over:
            records.drop("assumed")
            head.amend(lost=0)
    return steps


def too_large(step: Step, plan: Plan, lifts: int = NEVER) -> str:
    """Why an ask can never go; or not before `lifts`, when a value ends that was set for a time."""
    limit, rank = step.limit, step.rank
    whose = f"the share of priority {list(plan.policy.priorities)[rank]!r}" if rank >= 0 else "it"
    most = "no slot at all" if limit.leased else f"at most {figure(limit.largest(step.value))} at once"
    fits = "can never fit" if lifts >= NEVER else "does not fit at present"
    return f"a cost of {figure(step.cost)} {limit.unit} {fits}: {whose} allows {most}"


def pause(records: Records, until: int, reason: str) -> None:
    """Pause at least until then; a pause that is already longer stays."""
    if until > records.head.paused:
        records.head.amend(paused=until, reason=reason)
