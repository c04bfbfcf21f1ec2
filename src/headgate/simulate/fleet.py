"""A fleet in virtual time: workers, processes, their keepers, their crashes, and an upstream that keeps its own books."""

from __future__ import annotations

from array import array
from collections import deque
from random import Random

from ..gate.keeper import BEAT_LEAST, BEAT_MOST, BEAT_PER_SESSION
from ..kernel.commands import Renew
from ..kernel.model import SECOND
from .books import BookRule, SimulatedUpstream
from .engine import PARK, Engine
from .strategies import STRATEGIES, Headgate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..kernel.model import Wake
    from .engine import Steps, Task
    from .scenario import Scenario
    from .strategies import SimulatedPermit

#: Where virtual time begins, plus up to an hour by the seed: no run begins at the start of a minute by luck.
EPOCH = 1_800_000_000 * SECOND


class Pool:
    """The jobs of one tenant, or of the whole fleet. A job is the number of calls it still needs."""

    __slots__ = ("_calls", "_fresh", "_returned", "key")

    def __init__(self, key: str, jobs: int, calls: int) -> None:
        self.key = key
        self._fresh = jobs
        self._calls = calls
        self._returned: deque[int] = deque()

    def take(self) -> int:
        """Calls of the next job; 0 when there is none."""
        if self._returned:
            return self._returned.popleft()
        if self._fresh:
            self._fresh -= 1
            return self._calls
        return 0

    def give_back(self, calls: int) -> None:
        self._returned.append(calls)


class Process:
    """One process of the fleet: its workers, its session, and what its keeper keeps alive."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.lives = 0
        self.session = f"p{number}"
        self.workers: list[FleetWorker] = []
        self.tickets: dict[str, Callable[[int | None], None]] = {}
        self.leases: dict[str, SimulatedPermit] = {}
        self.keeper: Task | None = None
        self.alive = True
        self.keeper_parked = False

    def begin(self) -> None:
        """Start, or start again after a crash, with a session of its own."""
        self.session = f"p{self.number}.{self.lives}"
        self.lives += 1
        self.alive = True
        if isinstance(self.fleet.strategy, Headgate):
            self.keeper_parked = False
            self.fleet.strategy.store.adopt(self.session, self._wake)
            self.keeper = self.fleet.engine.start(self._keep(self.fleet.strategy))

    def _wake(self, wake: Wake) -> None:
        """Deliver a wake of the store to the worker whose ticket it names."""
        if (listener := self.tickets.get(wake.ticket)) is not None:
            listener(wake.delay)

    def wake_keeper(self) -> None:
        """There is a ticket or lease to keep alive: wake the keeper if it is parked."""
        if self.keeper_parked:
            self.keeper_parked = False
            assert self.keeper is not None
            self.keeper.tell(None)

    def _keep(self, ours: Headgate) -> Steps:
        """What the keeper's thread does: heartbeats for tickets, renewals for leases; parks when there is neither."""
        engine, gate = self.fleet.engine, ours.policy.name
        heartbeat_at = 0
        # Where nothing is lost on its way and no worker is ever blocked, a heartbeat changes nothing that could be seen.
        interval = int((BEAT_MOST if ours.instant else BEAT_LEAST) * SECOND)
        while True:
            while not self.tickets and not self.leases:
                self.keeper_parked = True
                yield PARK
            now = engine.now
            heartbeat_due = now >= heartbeat_at and bool(self.tickets)
            due = [held for held in self.leases.values() if held.due <= now] if self.leases else []
            if heartbeat_due or due:
                tickets: tuple[str, ...] = ()
                if heartbeat_due:  # as a keeper does: where its store is in its process, one stands for all
                    tickets = (next(iter(self.tickets)),) if ours.instant else tuple(self.tickets)
                rows = tuple((held.plan, held.id, held.at, held.plan.lease, held.fence, None) for held in due)
                pulse = ours.store.decide(Renew(gate, rows, self.session if tickets else "", tickets))
                for held in due:
                    held.due = now + held.plan.lease // 3
                if heartbeat_due:
                    self._wake_by(pulse)
                    if not ours.instant:
                        interval = int(min(max(pulse.sessions * BEAT_PER_SESSION, BEAT_LEAST), BEAT_MOST) * SECOND)
                    heartbeat_at = now + interval
            pause = max(1, heartbeat_at - now) if self.tickets else 5 * SECOND
            if self.leases:
                shortest = min(held.due for held in self.leases.values())
                pause = min(pause, max(SECOND // 10, shortest - now))
            yield pause

    def _wake_by(self, pulse: Any) -> None:
        for ticket in (*pulse.called, *pulse.unknown):
            if (listener := self.tickets.get(ticket)) is not None:
                listener(None)
        if (listener := self.tickets.get(pulse.timer)) is not None:
            listener(max(0, min(pulse.timer_at - pulse.now, 3600 * SECOND)))


class FleetWorker:
    """One worker: takes a job, makes its calls, thinks, takes the next."""

    __slots__ = ("got", "job", "key", "pool", "process", "task", "working")

    def __init__(self, process: Process, pool: Pool) -> None:
        self.process = process
        self.pool = pool
        self.key = pool.key
        self.task: Task
        #: What is left of the job in hand, to be given back when the process dies.
        self.job = 0
        #: Calls accepted; -1 while it has not asked for any.
        self.got = -1
        self.working = True

    def tell_after_hop(self, delay: int | None) -> None:
        """`task.tell` by a message that takes as long as every other between the store and this process."""
        fleet = self.process.fleet
        hop = int(fleet.hop())

        def deliver() -> Steps:
            if self.process.alive:
                self.task.tell(delay)
            return
            yield

        fleet.engine.start(deliver(), hop)


class Tally:
    """What the upstream accepted and refused. Times are seconds since the run began."""

    def __init__(self) -> None:
        self.accepted = array("d")
        self.refused = array("d")
        #: From wanting to make a call to sending the one that was accepted.
        self.waits = array("d")
        self.done = 0
        self.lost = 0
        self.crashes = 0
        self.last_done = 0.0
        self.units: dict[str, float] = {}
        self.work = 0.0
        self.by_key: dict[str, tuple[float, float]] = {}
        #: Calls that were under way for longer than the slack, and refusals that none of them can explain.
        self.late = 0
        self.late_at = float("-inf")
        self.unexplained = 0
        self.shares: tuple[float, ...] = ()


class Fleet:
    """One run of a scenario under one strategy."""

    def __init__(self, scenario: Scenario, strategy: str, seed: int) -> None:
        self.scenario = scenario
        self.rng = Random(seed)
        self.engine = Engine(EPOCH + self.rng.randrange(3600 * SECOND))
        self.tally = Tally()
        rules = [
            BookRule(
                rule.kind,
                tuple((at * 1000, limit) for at, limit in rule.steps),
                rule.per * 1000,
                rule.burst,
                rule.unit,
                rule.by,
            )
            for rule in scenario.rules
        ]
        self.upstream = SimulatedUpstream(rules, self.rng.randrange(86_400 * SECOND))
        self.upstream.begin(self.engine.now)
        self.hop = scenario.delay.sampler(self.rng)
        self.strategy = STRATEGIES[strategy](self)
        if scenario.tenants:
            crews = [(Pool(tenant.name, tenant.jobs, scenario.calls), tenant.workers) for tenant in scenario.tenants]
        else:
            crews = [(Pool("", scenario.jobs, scenario.calls), scenario.workers)]
        self.processes = [Process(self, number) for number in range(scenario.processes)]
        self.workers: list[FleetWorker] = []
        for pool, workers in crews:
            for _ in range(workers):
                process = self.processes[len(self.workers) % len(self.processes)]
                worker = FleetWorker(process, pool)
                process.workers.append(worker)
                self.workers.append(worker)
        self._busy = len(self.workers)
        slacks = [getattr(limit, "slack", 0) for limit in scenario.gate.limits]
        self._slack = max(slacks, default=0)
        self._span = max((rule.per for rule in scenario.rules), default=0) / 1e6 + self._slack / 1e6

    def run(self, horizon: float) -> Tally:
        """Until all jobs are done, or `horizon` seconds are over."""
        engine, scenario = self.engine, self.scenario
        for process in self.processes:
            process.begin()
        at = 0.0
        order = list(self.workers)
        self.rng.shuffle(order)
        gap = scenario.over / len(order)
        for number, worker in enumerate(order):
            if scenario.start == "even":
                at = number * gap
            elif scenario.start == "poisson":
                at += self.rng.expovariate(1.0 / gap)
            worker.task = engine.start(self._work(worker), int(at))
        if scenario.crash_every:
            engine.start(self._crashes())
        try:
            engine.run(engine.begun + int(horizon * SECOND))
        finally:  # also after Ctrl-C: a flow that is only dropped complains
            for process in self.processes:
                self._kill(process)
        if not self.tally.shares:
            self._share_out()
        return self.tally

    def share_done(self) -> float:
        """How much of all calls is done or given up, from 0 to 1. Safe to call from another thread during the run."""
        return min(1.0, (self.tally.done + self.tally.lost) / self.scenario.total)

    def _work(self, worker: FleetWorker) -> Steps:
        """The steps of one worker: jobs, their calls, refusals and pauses, until no job is left."""
        scenario, engine, tally, strategy = self.scenario, self.engine, self.tally, self.strategy
        upstream, pool, key, begun = self.upstream, worker.pool, worker.key, self.engine.begun
        network, work = scenario.network.sampler(self.rng), scenario.work.sampler(self.rng)
        think = None if scenario.think.is_zero else scenario.think.sampler(self.rng)
        lag = None if scenario.client_lag.is_zero else scenario.client_lag.sampler(self.rng)
        at_once = scenario.answer == "at once"
        drawn = [(unit, chance.sampler(self.rng)) for unit, chance in scenario.cost]
        fixed = all(chance.kind == "constant" for _, chance in scenario.cost)
        costs = {unit: draw() for unit, draw in drawn}
        for unit in costs:
            tally.units.setdefault(unit, 0.0)
        slack = self._slack
        while True:
            worker.job = pool.take()
            if not worker.job:
                break
            while worker.job:
                asked = engine.now
                if not fixed:
                    costs = {unit: draw() for unit, draw in drawn}
                attempt = 0
                pause: int | None = 0
                if worker.got < 0:
                    worker.got = 0
                while True:
                    permit = yield from strategy.acquire(worker, costs)
                    charged = engine.now
                    if lag is not None:
                        yield int(lag())
                        wait = strategy.sending(permit)
                        if wait is not None:
                            yield from wait
                            charged = engine.now
                    sent = engine.now
                    yield int(network())
                    now = engine.now
                    if now - charged > slack:
                        tally.late += 1
                        tally.late_at = (now - begun) / 1e6
                    if upstream.arrive(now, costs, key):
                        pause = 0
                        break
                    self._refused(now)
                    retry_after = upstream.retry_after(now, costs, key) if scenario.tells else 0
                    yield int(network())
                    wait = strategy.ended(worker, permit, "rate_limited", retry_after)
                    if wait is not None:
                        yield from wait
                    attempt += 1
                    pause = strategy.backoff(attempt)
                    if pause is None:
                        break
                    yield max(pause, retry_after)
                if pause is None:
                    tally.lost += worker.job
                    worker.job = 0
                    break
                seconds = work()
                tally.accepted.append((now - begun) / 1e6)
                tally.waits.append((sent - asked) / 1e6)
                if worker.got >= 0:
                    worker.got += 1
                self._accepted(key, costs, seconds)
                if at_once:
                    yield int(network())
                    wait = strategy.answered(worker, permit)
                    if wait is not None:
                        yield from wait
                    yield int(seconds)
                else:
                    yield int(seconds) + int(network())
                wait = strategy.ended(worker, permit, "ok", 0)
                if wait is not None:
                    yield from wait
                tally.done += 1
                worker.job -= 1
                if think is not None:
                    yield int(think())
        if scenario.tenants and not tally.shares:
            self._share_out()
        worker.working = False
        self._busy -= 1
        if not self._busy:
            tally.last_done = (engine.now - begun) / 1e6
            engine.stopped = True

    def _accepted(self, key: str, costs: dict[str, float], work: float) -> None:
        tally = self.tally
        tally.work += work / 1e6
        units = tally.units
        for unit in costs:
            units[unit] += costs[unit]
        if key:
            requests, worked = tally.by_key.get(key, (0.0, 0.0))
            tally.by_key[key] = (requests + costs["requests"], worked + work / 1e6)
        if self.upstream.slotted:
            # A task of its own: the upstream works on, also when the worker's process is killed.
            self.engine.start(self._leaves(key), int(work))

    def _leaves(self, key: str) -> Steps:
        self.upstream.leave(key)
        return
        yield

    def _refused(self, now: int) -> None:
        tally = self.tally
        at = (now - self.engine.begun) / 1e6
        tally.refused.append(at)
        if at - tally.late_at > self._span:
            tally.unexplained += 1

    def _share_out(self) -> None:
        """What each party got says how fair it was: tenants until one of them has nothing left, workers of one pool at
        the end."""
        if self.scenario.tenants:
            got: dict[str, float] = {tenant.name: 0.0 for tenant in self.scenario.tenants}
            for worker in self.workers:
                got[worker.key] += max(0, worker.got)
            self.tally.shares = tuple(got.values())
        else:
            self.tally.shares = tuple(float(worker.got) for worker in self.workers if worker.got >= 0)

    # --- crashes ------------------------------------------------------------------------------------------------

    def _crashes(self) -> Steps:
        scenario = self.scenario
        while True:
            yield int(self.rng.expovariate(1.0 / scenario.crash_every))
            living = [process for process in self.processes if process.alive]
            if not living:
                continue
            process = self.rng.choice(living)
            self.tally.crashes += 1
            self._kill(process)
            self.engine.start(self._restart(process), scenario.restart)

    def _kill(self, process: Process) -> None:
        process.alive = False
        self.strategy.crashed(process)
        if process.keeper is not None:
            process.keeper.kill()
        for worker in process.workers:
            worker.task.kill()
            if worker.job:
                worker.pool.give_back(worker.job)
                worker.job = 0

    def _restart(self, process: Process) -> Steps:
        process.begin()
        for worker in process.workers:
            self._busy += not worker.working
            worker.working = True
            worker.task = self.engine.start(self._work(worker))
        return
        yield
