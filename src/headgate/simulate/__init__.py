"""A fleet in virtual time: the real kernel and the real flows, against an upstream that keeps its own books.

from headgate.simulate import load, simulate
print(simulate(load("benchmarks/scenarios/adobe.toml"), seed=1).as_text())
"""

from __future__ import annotations

from ..errors import ConfigError, Denied, InvalidInput
from ..kernel.limits import Window
from .fleet import Fleet
from .planning import slack_costs
from .result import COLUMNS, Result, Row, jain, percentiles, span
from .scenario import Scenario, load, parse
from .strategies import STRATEGIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["COLUMNS", "STRATEGIES", "Result", "Row", "Scenario", "load", "parse", "run", "simulate"]


def simulate(
    scenario: Scenario,
    seed: int = 1,
    strategies: Iterable[str] | None = None,
    progress: Callable[[str, Callable[[], float]], None] | None = None,
) -> Result:
    """Run a scenario under each strategy (default: those that it names). The same seed gives the same result.

    `progress` is called before each run, with the strategy's name and a function that returns, in any thread, how much of
    that run is done, from 0 to 1.
    """
    names = list(scenario.strategies or STRATEGIES) if strategies is None else list(strategies)
    for name in names:
        if name not in STRATEGIES:
            raise InvalidInput(f"there is no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    rows = []
    for name in names:
        fleet = Fleet(scenario, name, seed)
        if progress is not None:
            progress(name, fleet.share_done)
        rows.append(_row(scenario, fleet))
    allows = next(
        (
            (rule.steps[0][1], rule.per / 1e6)
            for rule in scenario.rules
            if rule.per and rule.unit == "requests" and rule.by is None and len(rule.steps) == 1
        ),
        None,
    )
    return Result(scenario.name, seed, tuple(rows), scenario.total, allows, _what_slack_costs(scenario, rows))


def run(scenario: Scenario, strategy: str, seed: int) -> Row:
    """One strategy alone."""
    return _row(scenario, Fleet(scenario, strategy, seed))


def _row(scenario: Scenario, fleet: Fleet) -> Row:
    ideal = _ideal(scenario, fleet)
    try:
        tally = fleet.run(scenario.horizon / 1e6 or 20 * ideal + 3600.0)
    except Denied as error:  # no ask here has a time-out, so it is one that can never fit
        remedy = "let the gate allow what a call costs"
        raise ConfigError(str(error), file=scenario.file or scenario.name, path="gate.limits", remedy=remedy) from error
    accepted = tally.accepted
    # What was accepted after a crash or given up is not done, but the upstream has spent it.
    utilisation = 0.0
    if accepted and (took := accepted[-1] - accepted[0]):
        rates, slots = fleet.upstream.least_spans(tally.units, tally.work, tally.by_key)
        # The last call's work is part of what slots did.
        utilisation = min(1.0, max(rates / took, slots / (took + scenario.work.mean / 1e6)))
    p50, p99 = percentiles(tally.waits, 0.5, 0.99)
    return Row(
        strategy=fleet.strategy.name,
        done=tally.done,
        ideal=ideal,
        utilisation=utilisation,
        refused=len(tally.refused),
        makespan=tally.last_done or (fleet.engine.now - fleet.engine.begun) / 1e6,
        wait_p50=p50,
        wait_p99=p99,
        fairness=jain(tally.shares),
        tally=tally,
        total=scenario.total,
    )


def _what_slack_costs(scenario: Scenario, rows: list[Row]) -> tuple[str, ...]:
    """A sentence for each window of the gate: what its slack takes of the throughput, and would take unconfirmed."""
    if not any(row.strategy == "headgate" for row in rows):
        return ()
    told = []
    for limit in scenario.gate.limits:
        if not isinstance(limit, Window) or not limit.slack:
            continue
        seconds = limit.slack / 1e6
        whole = f"{slack_costs(limit):.2%} ({span(rows[0].ideal * limit.slack / limit.per)})"
        answered = 2 * scenario.network.mean / 1e6 + (0.0 if scenario.answer == "at once" else scenario.work.mean / 1e6)
        if scenario.confirm and 0 < answered < seconds:
            costs = f"{slack_costs(limit, answered):.2%}, confirmed after {span(answered)}; {whole} without"
        else:
            costs = f"{whole}: no early answer confirms"
        told.append(f"{seconds:g} s of slack cost {costs}")
    return tuple(told)


def _ideal(scenario: Scenario, fleet: Fleet) -> float:
    """Seconds that the whole takes at best: bound by the upstream, or by the number of workers; and the last call's own."""
    total = scenario.total
    units = {unit: chance.mean * total for unit, chance in scenario.cost}
    work = scenario.work.mean / 1e6
    by_key = {
        tenant.name: (units["requests"] * tenant.jobs / scenario.jobs, work * tenant.jobs * scenario.calls)
        for tenant in scenario.tenants
    }
    there = scenario.network.mean / 1e6
    busy = 2 * there + work + scenario.think.mean / 1e6
    rounds = max((tenant.jobs * scenario.calls / tenant.workers for tenant in scenario.tenants), default=0.0)
    rounds = rounds or total / scenario.workers
    rates, slots = fleet.upstream.least_spans(units, work * total, by_key)
    # With slots the work itself is in the span; with rates it follows the last acceptance.
    return max(rates + work + 2 * there, slots + 2 * there, rounds * busy)
