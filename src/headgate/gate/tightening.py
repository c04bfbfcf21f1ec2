"""A gate that lowers its limits by itself when the upstream refuses what it granted, and comes back slowly.

The books said that there was room, and the upstream says that there was not: its capacity is less than what is
configured, or somebody else uses it. Each congestion takes one step off the limit that is used most, as a tightening with a
reason, which every process sees and which ends by itself: nothing has to run for a limit to come back, and nothing rises
above what is configured.
"""

from __future__ import annotations

from ..background import start_daemon
from ..config.tighten import TightenRule
from ..errors import HeadgateError
from ..events import emit, subscribe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import Event
    from ..kernel.limits import Limit
    from ..kernel.model import Override
    from .sync import Gate


class Tightening:
    """Watches a gate's refusals in this process (the event `rate_limited`), and tightens it; `close` ends that.

    The store is told in the background: neither a release nor a report waits for it. `gate.tighten` is for a program that
    knows better which limit it is.
    """

    def __init__(self, gate: Gate, rule: TightenRule | None = None) -> None:
        self.gate = gate
        self.rule = TightenRule() if rule is None else rule
        self._busy = False
        self._end = subscribe(self._told)

    def close(self) -> None:
        self._end()

    def _told(self, event: Event) -> None:
        if event.kind != "rate_limited" or event.gate != self.gate.name or self._busy:
            return  # while one step is taken, further refusals are of the same congestion
        self._busy = True
        if start_daemon(f"headgate-tighten-{self.gate.name}", self._run) is None:
            self._busy = False

    def _run(self) -> None:
        try:
            self.step()
        except HeadgateError:
            pass  # the store is away, which is told elsewhere; the next refusal tries again
        finally:
            self._busy = False

    def step(self) -> Override | None:
        """Take one step now. Returns what is in force then; None where the last step is too young, or none is left."""
        limit = self._most_used()
        if limit is None:
            return None
        configured, in_force, age = limit.limit, float(limit.limit), float("inf")
        hold_s = self.rule.hold_s(limit.window_s() or 60.0)
        for override in self.gate.overrides():
            if override.limit == limit.name and override.key is None:
                in_force = min(in_force, override.value)
                if override.tightened and override.expires_in is not None:
                    age = min(age, hold_s - override.expires_in)
        value = self.rule.lowered(configured, in_force)
        if age < self.rule.quiet_s or value >= in_force:
            return None
        reason = f"429 although there was room: {value / configured:.0%} of {configured:.15g}"
        found = None
        # The longest first: at every moment what is in force is what should be.
        for rung, seconds in reversed(self.rule.rungs(configured, value, hold_s)):
            found = self.gate.tighten(limit.name, rung, expires_in=seconds, reason=reason)
        if found is not None:
            emit("tightened", self.gate.name, limit=limit.name, old=in_force, new=found.value)
        return found

    def _most_used(self) -> Limit | None:
        """The rate of which most is used: a refusal does not say which limit it was."""
        rates = {limit.name: limit for limit in self.gate.policy.limits if not limit.leased and limit.by is None}
        rows = [row for row in self.gate.usage().limits if row.name in rates]
        return rates[max(rows, key=lambda row: row.utilisation).name] if rows else None
