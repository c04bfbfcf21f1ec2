"""How workers share an upstream. Each strategy is one class; `STRATEGIES` is the table of them.

A strategy grants a permit before a call is sent (`acquire`, a part of the worker's own steps); `answered` and `ended` are
called when the upstream has accepted the call, and when it is over. All but `Headgate` are the designs that Headgate
replaces, as they were written down, with the mistakes by which they refuse or are refused.
"""

from __future__ import annotations

from ..kernel.commands import Settle
from ..kernel.flows import AwaitWake, Execute, Sleep, acquire, sent
from ..kernel.model import SECOND
from ..kernel.plan import CLAIM, PATIENCE, Policy
from ..stores.memory import MemoryStore
from .engine import PARK, park_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..kernel.model import Grant
    from ..kernel.plan import Plan
    from .engine import Steps
    from .fleet import Fleet, FleetWorker, Process

    #: What one call costs, by unit.
    Costs = Mapping[str, float]

MINUTE = 60 * SECOND


class Strategy:
    """Base: sends immediately, and retries after a refusal with exponential backoff and full jitter."""

    name = ""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.engine = fleet.engine
        self.rng = fleet.rng
        self.scenario = fleet.scenario

    def _setting(self, name: str) -> float:
        return self.scenario.setting(self.name, name)

    def acquire(self, worker: FleetWorker, costs: Costs) -> Steps:
        """Wait until the call may be sent. Returns the permit that `answered` and `ended` get."""
        return None
        yield

    def sending(self, permit: Any) -> Steps | None:
        """The call is about to be written."""
        return None

    def answered(self, worker: FleetWorker, permit: Any) -> Steps | None:
        """The upstream has accepted the call, and the worker knows."""
        return None

    def ended(self, worker: FleetWorker, permit: Any, outcome: str, retry_after: int) -> Steps | None:
        """The call is over: `ok` or `rate_limited`."""
        return None

    def backoff(self, attempt: int) -> int | None:
        """Microseconds to sleep after the refusal number `attempt`; None to give the job up."""
        base, cap = self._setting("base"), self._setting("cap")
        return int(self.rng.uniform(0.0, min(cap, base * 2.0 ** min(attempt - 1, 30))) * SECOND)

    def crashed(self, process: Process) -> None:
        """A process has crashed, without a word to the strategy's store."""


class Uncoordinated(Strategy):
    """Every worker for itself: send, and back off exponentially with full jitter when refused."""

    name = "uncoordinated"


class MinuteCounter(Strategy):
    """S0: a counter per calendar minute is read, then an in-flight number, then the counter is increased.

    Read and increase are two round trips, so workers that read in between pass too; two full minutes fit around a boundary;
    and all workers that find the minute full sleep until the same moment, the start of the next.
    """

    name = "minute-counter"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        requests = [rule for rule in self.scenario.rules if rule.unit == "requests" and rule.per]
        allowed = min((rule.steps[0][1] * MINUTE / rule.per for rule in requests), default=float("inf"))
        self._limit = self._setting("limit") or 0.95 * allowed
        self._most = self._setting("in_flight")
        self._hop = int(self._setting("delay") * SECOND)
        self._minute, self._count = -1, 0
        self._in_flight = 0

    def acquire(self, worker: FleetWorker, costs: Costs) -> Steps:
        attempt = 0
        while True:
            yield self._hop  # the count is read there, and known here a hop later
            full = self._counted() >= self._limit
            yield self._hop
            if full:
                yield MINUTE - self.engine.now % MINUTE
                continue
            yield self._hop
            if self._in_flight < self._most:
                self._in_flight += 1
                break
            attempt += 1
            yield int(min(30.0, 2.0 ** min(attempt, 10)) * SECOND)
        yield self._hop
        self._counted()
        self._count += 1
        yield self._hop
        return None

    def _counted(self) -> int:
        minute = self.engine.now // MINUTE
        if minute != self._minute:
            self._minute, self._count = minute, 0
        return self._count

    def ended(self, worker: FleetWorker, permit: Any, outcome: str, retry_after: int) -> Steps | None:
        self._in_flight -= 1  # a crashed worker's never comes back
        return None

    def backoff(self, attempt: int) -> int:
        # That design does not handle a 429 at all; the task runner starts the task again, as task runners do.
        return int(self.rng.uniform(0.0, min(60.0, 2.0 ** min(attempt - 1, 30))) * SECOND)


class FullBucket(Strategy):
    """S3: a token bucket that starts full, polled every 100 ms; refusals wait 2, 4, 8, 16, 32 s, and then the job fails."""

    name = "full-bucket"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        requests = [rule for rule in self.scenario.rules if rule.unit == "requests" and rule.per]
        allowed = min((rule.steps[0][1] * MINUTE / rule.per for rule in requests), default=float("inf"))
        self._limit = self._setting("limit") or allowed
        self._tokens = self._limit
        self._filled = self.engine.now

    def acquire(self, worker: FleetWorker, costs: Costs) -> Steps:
        now = self.engine.now
        self._tokens = min(self._limit, self._tokens + (now - self._filled) * self._limit / MINUTE)
        self._filled = now
        self._tokens -= 1.0
        if self._tokens < 0.0:
            # The worker that polls first after a token has come in gets it: in the mean half a poll late, in any order.
            yield int(-self._tokens * MINUTE / self._limit) + int(self.rng.random() * 0.1 * SECOND)
        return None

    def backoff(self, attempt: int) -> int | None:
        return None if attempt > self._setting("retries") else int(2.0**attempt * SECOND)


class NegativeBuckets(Strategy):
    """S2: a bucket per limit that may go below zero; a worker sleeps until the slowest of them is at zero again."""

    name = "negative-buckets"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._rules = [rule for rule in self.scenario.rules if rule.per]
        self._levels = [rule.steps[0][1] for rule in self._rules]
        self._filled = self.engine.now

    def acquire(self, worker: FleetWorker, costs: Costs) -> Steps:
        now = self.engine.now
        delay = 0.0
        for at, rule in enumerate(self._rules):
            size = rule.steps[0][1]
            level = min(size, self._levels[at] + (now - self._filled) * size / rule.per) - costs[rule.unit]
            self._levels[at] = level
            if level < 0.0:
                delay = max(delay, -level * rule.per / size)
        self._filled = now
        if delay:
            yield int(delay)
        return None

    def backoff(self, attempt: int) -> int:
        return 0  # "repeat the process"


class SimulatedPermit:
    """A permit of Headgate's, as far as a worker and its process's keeper need it. Times are microseconds."""

    __slots__ = ("asked", "at", "confirmed", "due", "fence", "id", "plan", "worth")

    def __init__(self, plan: Plan, id: str, grant: Grant, asked: int) -> None:
        self.plan = plan
        self.id = id
        self.at, _, self.fence, self.worth, _ = grant
        #: When it is charged as far as the client knows: when its ask was sent.
        self.asked = asked
        self.confirmed = 0
        self.due = self.at + plan.lease // 3


class Headgate(Strategy):
    """Headgate: the real commands on a real store, the real flows, on the virtual clock."""

    name = "headgate"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        engine, gate = self.engine, self.scenario.gate
        self.clock = lambda: engine.now
        self.store = MemoryStore(clock=self.clock)
        from .. import duration

        self.policy = Policy(
            gate.name,
            gate.limits,
            waiting=gate.waiting,
            priorities=gate.priorities,
            patience=PATIENCE if gate.patience is None else duration.parse(gate.patience),
            claim=CLAIM if gate.claim is None else duration.parse(gate.claim),
        )
        self._confirms = self.scenario.confirm
        self._stamps = self.scenario.stamp
        self._hop = None if self.scenario.delay.is_zero else self.scenario.delay.sampler(self.rng)
        self.instant = self._hop is None
        #: key → the plan of its calls, where all of them cost the same.
        self._plans: dict[str, Plan] = {}
        self._variable = any(chance.kind != "constant" for _, chance in self.scenario.cost)
        self._ids = 0

    def _plan(self, worker: FleetWorker, costs: Costs) -> Plan:
        mine = {unit: amount for unit, amount in costs.items() if unit in self.policy.units}
        key = {self.scenario.by: worker.key} if self.policy.keys else None
        plan = self.policy.plan(mine, key)
        if not self._variable:
            self._plans[worker.key] = plan
        return plan

    def acquire(self, worker: FleetWorker, costs: Costs) -> Steps:
        plan = self._plans.get(worker.key) or self._plan(worker, costs)
        process, store, hop = worker.process, self.store, self._hop
        self._ids += 1
        id = f"{process.session}-{self._ids:x}"
        if plan.lane:
            id = f"{id}~{plan.lane}"
        flow = acquire(plan, id, process.session, self.clock, lease=plan.lease)
        worker.task.mail.clear()
        # A flow that is told when to look again only waits for that long: the task need not wake up for it.
        process.tickets[id] = worker.task.tell if hop is None else worker.tell_after_hop
        try:
            effect = next(flow)
            while True:
                if effect.__class__ is Execute:
                    if hop is None:
                        answer = store.decide(effect.command)
                    else:
                        yield int(hop())
                        answer = store.decide(effect.command)
                        yield int(hop())
                elif effect.__class__ is AwaitWake:
                    if process.keeper_parked:
                        process.wake_keeper()
                    answer = yield PARK if effect.delay is None else park_for(effect.delay)
                elif effect.__class__ is Sleep:
                    yield effect.delay
                    answer = None
                effect = flow.send(answer)
        except StopIteration as done:
            held = SimulatedPermit(plan, id, *done.value)
        except BaseException:
            # This process was killed, or the run was interrupted: the flow ends without a word to the store.
            for _ in range(2):
                try:
                    flow.throw(GeneratorExit)
                except (GeneratorExit, StopIteration):
                    break
            raise
        finally:
            process.tickets.pop(id, None)
        if plan.lease:
            process.leases[id] = held
            process.wake_keeper()
        return held

    def sending(self, permit: SimulatedPermit) -> Steps | None:
        """As `Permit.sent` does."""
        if not self._stamps or 0 <= self.engine.now - permit.asked <= permit.plan.template.fresh:
            return None
        return self._stamp(permit)

    def _stamp(self, permit: SimulatedPermit) -> Steps:
        store, hop = self.store, self._hop
        flow = sent(permit.plan, permit.id, permit.at, self.clock)
        try:
            effect: Any = next(flow)
            while True:
                answer = None
                if effect.__class__ is Sleep:
                    yield effect.delay
                elif hop is None:
                    answer = store.decide(effect.command)
                else:
                    yield int(hop())
                    answer = store.decide(effect.command)
                    yield int(hop())
                effect = flow.send(answer)
        except StopIteration as done:
            at, permit.asked = done.value
            if not permit.plan.lease:
                permit.at = at

    def answered(self, worker: FleetWorker, permit: SimulatedPermit) -> Steps | None:
        if not (self._confirms and permit.worth):
            return None
        command = Settle(permit.plan, permit.at, permit.id, None, False)
        if self._hop is not None:
            return self._confirm_after_hop(permit, command)
        permit.confirmed = self.store.decide(command).at
        return None

    def _confirm_after_hop(self, permit: SimulatedPermit, command: Settle) -> Steps:
        assert self._hop is not None
        yield int(self._hop())
        permit.confirmed = self.store.decide(command).at
        yield int(self._hop())

    def ended(self, worker: FleetWorker, permit: SimulatedPermit, outcome: str, retry_after: int) -> Steps | None:
        plan = permit.plan
        if plan.lease:
            worker.process.leases.pop(permit.id, None)
        elif not retry_after and (not permit.worth or permit.confirmed):
            return None  # as a permit without a lease does: the store need not know
        command = Settle(plan, permit.at, permit.id, outcome, False, retry_after, None, permit.confirmed)
        if self._hop is not None:
            return self._settle_after_hop(command)
        self.store.decide(command)
        return None

    def _settle_after_hop(self, command: Settle) -> Steps:
        assert self._hop is not None
        yield int(self._hop())
        self.store.decide(command)
        yield int(self._hop())

    def crashed(self, process: Process) -> None:
        self.store.disown(process.session)
        process.tickets.clear()
        process.leases.clear()


STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (Uncoordinated, MinuteCounter, FullBucket, NegativeBuckets, Headgate)
}
