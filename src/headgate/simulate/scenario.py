"""From a TOML file to a validated `Scenario`: the fleet, its jobs and calls, and what the upstream allows.

Strict like the configuration of gates: the first thing that is unknown, of the wrong type or senseless is a `ConfigError`
with the file, the path in it and what would be right.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from .. import duration
from ..config.file import read_gate, read_toml
from ..config.toml_table import Table, listed, read_text, type_of
from ..errors import ConfigError
from . import chance
from .books import BOOKS
from .chance import NOTHING, Chance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..config.file import GateSpec

STARTS = ("at once", "even", "poisson")
ANSWERS = ("at once", "at the end")

TOP_KEYS = ("about", "strategies", "horizon", "jobs", "fleet", "call", "upstream", "gate", "tenants", "settings")
JOB_KEYS = ("count", "calls", "cost")
FLEET_KEYS = ("workers", "processes", "start", "over", "think", "crashes")
CALL_KEYS = ("network", "client_lag", "work", "answer")
TENANT_KEYS = ("name", "workers", "jobs")
GATE_KEYS = ("limits", "waiting", "priorities", "patience", "claim", "delay", "confirm", "stamp")
RULE_KEYS = (*BOOKS, "per", "burst", "unit", "by", "steps")
#: strategy → the settings that [settings.STRATEGY] may change
SETTINGS: dict[str, dict[str, float]] = {
    "uncoordinated": {"base": 1.0, "cap": 60.0},
    "minute-counter": {"limit": 0, "in_flight": 150, "delay": 0.005},
    "full-bucket": {"limit": 0, "retries": 5},
    "negative-buckets": {},
    "headgate": {"base": 1.0, "cap": 30.0},
}
_RULE = '{ sliding = 200, per = "1m" }'


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the upstream. Times are microseconds; `steps` are (since the run began, limit from then on)."""

    kind: str
    steps: tuple[tuple[int, float], ...]
    per: int = 0
    burst: float | None = None
    unit: str = "requests"
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A part of the fleet with a key, workers and jobs of its own."""

    name: str
    workers: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run depends on, but its seed and strategy. Times are microseconds."""

    name: str
    rules: tuple[Rule, ...]
    gate: GateSpec
    jobs: int
    workers: int
    network: Chance
    work: Chance
    #: Where it was read from, for messages.
    file: str = ""
    about: str = ""
    calls: int = 1
    #: unit → what one call costs of it; `requests` is always there
    cost: tuple[tuple[str, Chance], ...] = (("requests", chance.constant(1)),)
    processes: int = 1
    start: str = "at once"
    over: int = 60_000_000
    think: Chance = NOTHING
    #: A process dies every so often (mean, over the whole fleet), and is back after `restart`; 0: none does.
    crash_every: int = 0
    restart: int = 0
    answer: str = "at once"
    #: Whether a refusal says when to retry.
    tells: bool = False
    confirm: bool = True
    #: Whether clients stamp their permits just before they write a call.
    stamp: bool = True
    #: From a permit to the writing of its call: what the client itself adds to the way.
    client_lag: Chance = NOTHING
    #: One way between a worker and the store.
    delay: Chance = NOTHING
    tenants: tuple[Tenant, ...] = ()
    #: The key that tenants are told apart by.
    by: str = ""
    horizon: int = 0
    strategies: tuple[str, ...] = ()
    settings: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()

    @property
    def total(self) -> int:
        """All calls of all jobs."""
        return self.jobs * self.calls

    def setting(self, strategy: str, name: str) -> float:
        return dict(dict(self.settings).get(strategy, ())).get(name, SETTINGS[strategy][name])

    def having(self, **changes: Any) -> Scenario:
        """A copy with something changed: `scenario.having(workers=10, start="even")`."""
        return replace(self, **changes)


def load(path: str | os.PathLike[str]) -> Scenario:
    """Read a scenario from its file. Raises `ConfigError`."""
    file = os.fspath(path)
    remedy = "name a scenario, such as benchmarks/scenarios/adobe.toml"
    try:
        text = read_text(file, remedy)
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=file, remedy=remedy) from None
    return parse(text, file=file)


def parse(text: str, *, file: str = "scenario.toml") -> Scenario:
    """A scenario from its text; `file` is what messages call it, and gives it its name."""
    top = Table(file, "", read_toml(text, file))
    top.only(TOP_KEYS)
    name = os.path.basename(file).removesuffix(".toml")
    jobs = _required(top, "jobs", "[jobs] with count = 1000")
    jobs.only(JOB_KEYS)
    fleet = _required(top, "fleet", "[fleet] with workers = 100")
    fleet.only(FLEET_KEYS)
    call = _required(top, "call", '[call] with network = "100ms" and work = "5s"')
    call.only(CALL_KEYS)
    upstream = _required(top, "upstream", f"[upstream] with limits = [{_RULE}]")
    upstream.only(("limits", "retry_after"))
    rules = _rules(upstream)
    gate, confirm, stamp, delay = _gate(top, name)
    tenants, by = _tenants(top, rules, gate)
    if tenants:
        for table, key in ((jobs, "count"), (fleet, "workers")):
            if key in table.values:
                raise table.refuse("each tenant says this for itself", f"leave {key} out", key=key)
    workers = sum(tenant.workers for tenant in tenants) or _count(fleet, "workers")
    start = fleet.choice("start", STARTS, "at once")
    if start == "at once" and "over" in fleet.values:
        raise fleet.refuse(
            "over means nothing where all start at once", 'leave it out, or take start = "even"', key="over"
        )
    every, restart = _crashes(fleet)
    processes = _count(fleet, "processes", default=max(1, min(workers, 20)))
    if processes > workers:
        raise fleet.refuse(f"{processes} processes for {workers} workers", "each needs one at least", key="processes")
    return Scenario(
        name=name,
        file=file,
        about=top.text("about") or "",
        rules=rules,
        gate=gate,
        jobs=sum(tenant.jobs for tenant in tenants) or _count(jobs, "count"),
        calls=_count(jobs, "calls", default=1),
        cost=_costs(jobs, rules, gate),
        workers=workers,
        processes=processes,
        start=start,
        over=_microseconds(fleet, "over", 60_000_000),
        think=chance.read(fleet, "think", NOTHING),
        crash_every=every,
        restart=restart,
        network=chance.read(call, "network", NOTHING),
        client_lag=chance.read(call, "client_lag", NOTHING),
        work=chance.read(call, "work"),
        answer=call.choice("answer", ANSWERS, "at once"),
        tells=_flag(upstream, "retry_after", False),
        confirm=confirm,
        stamp=stamp,
        delay=delay,
        tenants=tenants,
        by=by,
        horizon=_microseconds(top, "horizon", 0),
        strategies=_strategies(top),
        settings=_settings(top),
    )


def _required(top: Table, key: str, right: str) -> Table:
    if key not in top.values:
        raise top.refuse(f"{key} is missing", f"add {right}", key=key)
    return top.table(key, f"it must be a table: {right}")


def _count(table: Table, key: str, default: int | None = None) -> int:
    value = table.values.get(key, default)
    # A worker is an object in memory, a job is only counted.
    most = 1_000_000 if key in ("workers", "processes") else 100_000_000
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        problem = f"{key} is missing" if value is None else f"{value!r} is not a count"
        raise table.refuse(problem, f"it must be a whole number from 1 to {most:,}", key=key)
    return value


def _amount(table: Table, key: str, value: object, least: float = 1e-9) -> float:
    # Compared before anything else is done with it: an int of 400 digits is no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e15:
        problem = f"{key} is missing" if value is None else f"{value!r} is not a number that makes sense here"
        raise table.refuse(problem, f"it must be a number from {least:g} to 1e15", key=key)
    return float(value)


def _flag(table: Table, key: str, default: bool) -> bool:
    value = table.values.get(key, default)
    if not isinstance(value, bool):
        raise table.refuse(f"it is {type_of(value)}", "it must be true or false", key=key)
    return value


def _microseconds(table: Table, key: str, default: int) -> int:
    value = table.duration(key)
    return default if value is None else duration.parse(value)


def _crashes(fleet: Table) -> tuple[int, int]:
    if "crashes" not in fleet.values:
        return 0, 0
    right = 'it must be a table like { every = "10m", restart = "30s" }'
    table = fleet.table("crashes", right)
    table.only(("every", "restart"))
    every = _microseconds(table, "every", 0)
    if not every:
        raise table.refuse("every is missing", right, key="every")
    return every, _microseconds(table, "restart", 30_000_000)


# --- the upstream -----------------------------------------------------------------------------------------------


def _rules(upstream: Table) -> tuple[Rule, ...]:
    entries = upstream.values.get("limits")
    if not isinstance(entries, list) or not entries:
        problem = f"limits is {type_of(entries)}" if entries else "there are no limits"
        raise upstream.refuse(problem, f"it must be an array of limits: limits = [{_RULE}]", key="limits")
    tables = [
        upstream.inner(f"limits[{at}]", entry, f"a limit is a table like {_RULE}") for at, entry in enumerate(entries)
    ]
    rules = tuple(_rule(table) for table in tables)
    keys = {rule.by for rule in rules if rule.by}
    if len(keys) > 1:
        raise upstream.refuse(f"its limits are by {listed(sorted(keys))}", "tenants have one kind of key", key="limits")
    return rules


def _rule(table: Table) -> Rule:
    kinds = [kind for kind in BOOKS if kind in table.values]
    table.only(RULE_KEYS)
    if len(kinds) != 1:
        problem = f"it is {' and '.join(kinds)} at once" if kinds else "it does not say what kind of limit it is"
        raise table.refuse(problem, f"each limit has one of {listed(BOOKS)}, as in {_RULE}")
    (kind,) = kinds
    timed = kind != "slots"
    for key, fits in (("per", timed), ("burst", kind == "bucket"), ("unit", timed)):
        if key in table.values and not fits:
            raise table.refuse(f"{key} means nothing for {kind}", "leave it out", key=key)
    if timed and "per" not in table.values:
        raise table.refuse("per is missing", f'{kind} needs it, as in per = "1m"', key="per")
    steps = [(0, _amount(table, kind, table.values[kind]))]
    changes = table.values.get("steps", [])
    if not isinstance(changes, list):
        raise table.refuse(
            f"it is {type_of(changes)}", 'write it like steps = [{ after = "5m", limit = 100 }]', key="steps"
        )
    for at, entry in enumerate(changes):
        step = table.inner(f"steps[{at}]", entry, 'a step is a table like { after = "5m", limit = 100 }')
        step.only(("after", "limit"))
        after = _microseconds(step, "after", 0)
        if after <= steps[-1][0]:
            raise step.refuse(
                "it is not after the step before it", "put steps in the order of their times", key="after"
            )
        steps.append((after, _amount(step, "limit", step.values.get("limit"))))
    burst = None if "burst" not in table.values else _amount(table, "burst", table.values["burst"])
    per = _microseconds(table, "per", 0)
    return Rule(kind, tuple(steps), per, burst, table.text("unit") or "requests", table.text("by"))


# --- the gate ---------------------------------------------------------------------------------------------------


def _gate(top: Table, name: str) -> tuple[GateSpec, bool, bool, Chance]:
    table = _required(top, "gate", '[gate] with limits = [{ window = 200, per = "1m", slack = "2s" }]')
    table.only(GATE_KEYS)
    own = {key: value for key, value in table.values.items() if key not in ("delay", "confirm", "stamp")}
    gate = read_gate(Table(table.file, table.path, own), "upstream", "memory://")
    return gate, _flag(table, "confirm", True), _flag(table, "stamp", True), chance.read(table, "delay", NOTHING)


def _costs(jobs: Table, rules: tuple[Rule, ...], gate: GateSpec) -> tuple[tuple[str, Chance], ...]:
    table = jobs.table("cost", "it must be a table of units and amounts: cost = { pu = 3.2 }")
    costs = {"requests": chance.constant(1)}
    for unit in table.values:
        costs[unit] = chance.read(table, unit, amounts=True, least=1e-6)
    limited = {rule.unit for rule in rules} | {limit.unit for limit in gate.limits}
    for unit in sorted(limited - costs.keys()):
        raise jobs.refuse(f"the cost of a call in {unit!r} is missing", f"add cost = {{ {unit} = 1 }}", key="cost")
    for unit in table.values:
        if unit not in limited:
            raise table.refuse(f"nobody limits {unit!r}", f"the units here are {listed(sorted(limited))}", key=unit)
    return tuple(costs.items())


def _tenants(top: Table, rules: tuple[Rule, ...], gate: GateSpec) -> tuple[tuple[Tenant, ...], str]:
    keys = sorted({rule.by for rule in rules if rule.by} | {limit.by for limit in gate.limits if limit.by})
    entries = top.values.get("tenants")
    right = '[[tenants]] with name = "acme", workers = 20 and jobs = 100'
    if entries is None:
        if keys:
            raise top.refuse(
                f"limits are by {keys[0]!r}, and there is nobody to tell apart", f"add {right}", key="tenants"
            )
        return (), ""
    if not isinstance(entries, list) or not entries:
        raise top.refuse(f"it is {type_of(entries)}", f"it must be an array of tables: {right}", key="tenants")
    if len(keys) != 1:
        problem = f"limits are by {listed(keys)}" if keys else "no limit is by a key"
        raise top.refuse(problem, 'tenants need limits by one key, such as by = "org"', key="tenants")
    tenants: list[Tenant] = []
    for at, entry in enumerate(entries):
        table = top.inner(f"tenants[{at}]", entry, right)
        table.only(TENANT_KEYS)
        name = table.text("name") or ""
        if not name or any(tenant.name == name for tenant in tenants):
            problem = f"there are two tenants {name!r}" if name else "name is missing"
            raise table.refuse(problem, "give each tenant a name of its own", key="name")
        tenants.append(Tenant(name, _count(table, "workers"), _count(table, "jobs")))
    return tuple(tenants), keys[0]


# --- what to compare --------------------------------------------------------------------------------------------


def _strategies(top: Table) -> tuple[str, ...]:
    names = top.values.get("strategies", list(SETTINGS))
    if not isinstance(names, list) or not names:
        raise top.refuse(
            f"it is {type_of(names)}", f"it must be an array of some of {listed(SETTINGS)}", key="strategies"
        )
    for at, name in enumerate(names):
        if not isinstance(name, str) or name not in SETTINGS:
            raise top.refuse(f"there is no strategy {name!r}", f"there are {listed(SETTINGS)}", key=f"strategies[{at}]")
        if name in names[:at]:
            raise top.refuse(f"{name!r} is there twice", "name each strategy once", key=f"strategies[{at}]")
    return tuple(names)


def _settings(top: Table) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    table = top.table("settings", "it must be a table of strategies: [settings.minute-counter] with limit = 190")
    table.only(SETTINGS, "the strategies are")
    found = []
    for strategy in table.values:
        inner = table.table(strategy)
        known = SETTINGS[strategy]
        if inner.values and not known:
            raise table.refuse(f"{strategy} has no settings", "leave it out", key=strategy)
        inner.only(known, f"the settings of {strategy} are")
        # Not below a millisecond: workers that retry immediately and for ever would let no virtual time pass.
        values = ((key, _amount(inner, key, value, 0.001)) for key, value in inner.values.items())
        found.append((strategy, tuple(values)))
    return tuple(found)
