"""PURE. One sentence that answers "why", for a gate and for an ask: what every face shows is made here."""

from __future__ import annotations

from . import model
from .model import AS_GOOD_AS_NEVER, EARLIEST, ESTIMATE, SECOND, Refusal, Wait, label_of
from .overrides import in_force

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .model import Override, Snapshot, WaitingTicket
    from .plan import Policy


#: What is said of a gate where nothing keeps asks from going.
FREE = "free now"


def span(seconds: float) -> str:
    """A time in at most six characters: 0.3 s, 42 s, 3m05s, 2h10m, 4d02h."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def amount(value: float) -> str:
    """Whole numbers as such, others with as many digits as they are worth."""
    if value == int(value) or value >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def paused_words(seconds: float) -> str:
    """How long a pause lasts: `paused for 9m59s`, or `paused until resumed`."""
    return "paused until resumed" if seconds > AS_GOOD_AS_NEVER else f"paused for {span(seconds)}"


def override_words(override: Override) -> str:
    """What is in force in the place of a configured value: `tightened to 50 for 41 s: the upstream said so`."""
    ends = "" if override.expires_in is None else f" for {span(override.expires_in)}"
    reason = f": {override.reason}" if override.reason else ""
    return f"{'tightened' if override.tightened else 'set'} to {amount(override.value)}{ends}{reason}"


def _lowered(snapshot: Snapshot, name: str | None, key: str | None = None) -> str:
    """What is to be said of a limit that blocks besides: that its value is not the configured one."""
    found = in_force(snapshot.overrides, model.Override(name or "", key, float("inf")))
    return "" if found.value == float("inf") else f"; {found.limit} is {override_words(found)}"


def wait_words(count: int) -> str:
    return f"{count:,} {'waits' if count == 1 else 'wait'}"


def why_gate(policy: Policy, snapshot: Snapshot) -> str:
    """What keeps a gate's asks from going, and until when. The look must have been one at the waiters."""
    waiting = snapshot.waiting
    if snapshot.paused_until:
        words = paused_words((snapshot.paused_until - snapshot.now) / SECOND)
        reason = f": {label_of(snapshot.pause_reason)}" if snapshot.pause_reason else ""
        return f"{words}{reason}" + (f"; {wait_words(waiting)}" if waiting else "")
    if waiting:
        first = min(
            (ticket for ticket in snapshot.waiters if ticket.state == "waits"),
            key=lambda ticket: ticket.goes_at,
            default=None,
        )
        if not snapshot.waiters:
            return wait_words(waiting)
        if first is None:
            return f"{waiting:,} {'is' if waiting == 1 else 'are'} called and about to go"
        return _first_waits(policy, snapshot, first) + _lowered(snapshot, first.limit, _key_of(policy, first))
    promised = max((usage.promised for usage in snapshot.limits), default=0.0)
    last = max(snapshot.limits, key=lambda usage: usage.free_in, default=None)
    if last is None or last.free_in <= 0:
        return f"{amount(promised)} promised; a small ask may go now" if promised else FREE
    words = f"{last.name} is used up" + (f", and {amount(promised)} are promised" if promised else "")
    lowered = _lowered(snapshot, last.name.partition("@")[0], last.key)
    if last.free_in == float("inf"):
        return f"{words}: no ask can go{lowered}"
    slots = any(limit.name == last.name and limit.leased for limit in policy.limits)
    within = "within " if slots else "in "
    return f"{words}: the next ask can go {within}{span(last.free_in)}{lowered}"


def _key_of(policy: Policy, ticket: WaitingTicket) -> str | None:
    """The value of the key of the limit that a ticket waits for, where that is by one."""
    by = next((limit.by for limit in policy.limits if limit.name == ticket.limit), None)
    return None if by is None else ticket.key.get(by)


def _first_waits(policy: Policy, snapshot: Snapshot, first: WaitingTicket) -> str:
    names = list(policy.priorities)
    who = ", ".join(
        part
        for part in (first.holder or "without a name", names[first.rank] if first.rank < len(names) else "")
        if part
    )
    soon = span((first.goes_at - snapshot.now) / SECOND)
    limit = next((limit for limit in policy.limits if limit.name == first.limit), None)
    if limit is None:
        return f"{wait_words(snapshot.waiting)}: the first ({who}) goes in {soon}"
    key = f" of {first.key[limit.by]}" if limit.by and limit.by in first.key else ""
    begin = f"{wait_words(snapshot.waiting)} for {limit.name}{key}: the first ({who}) needs "
    if limit.leased:
        return f"{begin}a slot, and none is free; one ends by itself in {soon}"
    return f"{begin}{amount(first.cost.get(limit.unit, 1.0))} of {amount(first.left)} left; goes in {soon}"


def why_ask(snapshot: Snapshot) -> str:
    """Why the ask of a look would not go now, or that it would."""
    decision = snapshot.decision
    key = next((usage.key for usage in snapshot.limits if decision and usage.name == decision.limit), None)
    if isinstance(decision, Refusal):
        return decision.reason + _lowered(snapshot, decision.limit, key)
    if not isinstance(decision, Wait):
        return "it would go now"
    if decision.reason == "paused":
        return f"the gate is paused: {label_of(snapshot.pause_reason) or 'no reason given'}"
    if decision.reason == "line":
        limit = f" for {decision.limit}" if decision.limit else ""
        return f"{wait_words(decision.position - 1)} before it{limit}"
    return f"limit {decision.limit!r} is used up" + _lowered(snapshot, decision.limit, key)


def when_words(after: float | None, timing: str) -> str:
    """When an ask would go, and how sure that is: `in about 41 s`."""
    if after is None:
        return "never"
    if after <= 0:
        return "now"
    return {ESTIMATE: "in about ", EARLIEST: "at the earliest in "}.get(timing, "in ") + span(after)
