"""`headgate doctor`: is everything as it should be?"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from dataclasses import asdict, dataclass
from math import floor

import click

import headgate
from headgate import Concurrency, Gate, HeadgateError
from headgate.events import subscribe
from headgate.stores import open_store
from headgate.stores.base import shown

from . import params
from .app import CONFIG, FAILED, OK, UNAVAILABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headgate.config.file import GateSpec
    from headgate.events import Event
    from headgate.gate.gates import Gates

#: A gate of doctor's own, to write something without touching the configured ones.
GATE = "headgate-doctor"
#: Seconds by which the store's clock and this machine's may differ before it is worth a word.
SKEW = 2.0
#: From which share on a total is worth a word.
BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `level` is ok, note (worth knowing) or wrong; `remedy` is what would mend it."""

    check: str
    level: str
    detail: str
    remedy: str = ""


@click.command()
@click.option("--processes", type=click.IntRange(min=1), help="How many processes run, to check local shares against.")
@click.option("--create", is_flag=True, help="Create what a store needs and lacks, such as a table.")
@params.json_option
@click.pass_context
def doctor(context: click.Context, processes: int | None, create: bool, as_json: bool) -> None:
    """Check the configuration, the stores and the clocks.

    A store is written to, in a gate of doctor's own, which is emptied again. Ends with 0 when nothing is wrong; a note is
    nothing wrong.
    """
    checks = list(examine(context, processes, create))
    wrong = [check for check in checks if check.level == "wrong"]
    if as_json:
        params.print_json({"ok": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        from rich.text import Text

        from .view import make_console, plain_signs

        console = make_console()
        signs = {"ok": ("✓", "green"), "note": ("•", "yellow"), "wrong": ("✗", "bold red")}
        if plain_signs(console):
            signs = {"ok": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("WRONG", "bold red")}
        for check in checks:
            remedy = f"\n  → {check.remedy}" if check.remedy else ""
            console.print(Text.assemble(signs[check.level], f" {check.check}: {check.detail}", (remedy, "cyan")))
    if not wrong:
        context.exit(OK)
    context.exit({"configuration": CONFIG, "store": UNAVAILABLE}.get(wrong[0].check.split()[0], FAILED))


def examine(context: click.Context, processes: int | None, create: bool) -> Iterator[Check]:
    drivers = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("click", "rich"))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Check("versions", "ok", f"headgate {headgate.__version__}, {python}, {drivers}, {platform.system()}")
    yield _clock()
    try:
        gates = params.load_gates(context)
    except HeadgateError as error:
        yield Check("configuration", "wrong", str(error))
        return
    config = gates.config
    gates_there = f"{params.counted(len(config), 'gate')}: {', '.join(config)}"
    yield Check("configuration", "ok", f"{params.path_of(config)}: {gates_there}")
    for url in dict.fromkeys(config[name].store for name in config):
        yield from _store(url, create)
        yield from _guarded([name for name in config if config[name].store == url], gates)
    for name in config:
        yield from _gate(config[name], processes)
        yield from _totals(gates[name])


def _clock() -> Check:
    now = time.time()
    if now < 1.7e9:
        told = time.strftime("%Y-%m-%d", time.gmtime(now))
        return Check(
            "clock", "wrong", f"this machine believes that it is {told}", "set its clock; calendar quotas need it"
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def _store(url: str, create: bool) -> Iterator[Check]:
    name = f"store {shown(url)}"
    made: list[str] = []
    try:
        store: Any = open_store(url)
        if create and store.capabilities.creates:
            made = store.create()
    except HeadgateError as error:
        yield Check(name, "wrong", str(error))
        return
    if store.capabilities.has_policies:
        yield from _guard(name, store)
        return
    try:
        gate = Gate(GATE, [Concurrency(1_000_000, name="probe", lease="10s")], store=url)
        gate.usage()  # which also loads its driver and connects
        begun = time.perf_counter()
        gate.usage()
        took = time.perf_counter() - begun
        permit = gate.acquire(holder="headgate doctor", timeout=5, renew=False)
        now = time.time()
        permit.release()
        gate.reset()
    except HeadgateError as error:
        yield Check(name, "wrong", str(error))
        return
    yield Check(name, "ok", f"reachable and writable, answers in {took * 1000:.1f} ms")
    for level, detail, remedy in store.examine() if store.capabilities.examines else ():
        yield Check(name, level, detail, remedy)
    if create:
        yield Check(name, "ok", "; ".join(made) or "there was nothing to create")
    skew = (permit.lease_expires_at or now) - 10 - now
    if abs(skew) > SKEW:
        detail = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        yield Check(
            f"clock of {name}", "note", detail, "decisions are made by the store's clock, so limits hold all the same"
        )
    if url.startswith("memory:"):
        remedy = 'take store = "sqlite:///headgate.db" for the processes of one machine'
        yield Check(name, "note", "no two processes share it: each has all of the limits to itself", remedy)


def _guard(name: str, store: Any) -> Iterator[Check]:
    """A guard is only looked at: its gates are in use, and it may serve no others."""
    try:
        store.policies()  # which also connects
        begun = time.perf_counter()
        findings = store.examine()
        took = time.perf_counter() - begun
    except HeadgateError as error:
        yield Check(name, "wrong", str(error))
        return
    yield Check(name, "ok", f"a guard, which answers in {took * 1000:.1f} ms")
    for level, detail, remedy in findings:
        yield Check(name, level, detail, remedy)


def _guarded(names: list[str], gates: Gates) -> Iterator[Check]:
    """Whether the gates of this file are the guard's."""
    found: list[Event] = []
    unsubscribe = subscribe(found.append)
    try:
        for name in names:
            if not open_store(gates.config[name].store).capabilities.has_policies:
                continue
            try:
                gates[name].usage()
            except HeadgateError as error:
                yield Check(f"gate {name}", "wrong", str(error))
            for event in found:
                if event.kind == "limits_differ" and event.gate == name:
                    remedy = "leave the limits out of this file: the gate then takes the guard's"
                    yield Check(
                        f"gate {name}", "note", f"the guard's limits count: {event.facts['differences']}", remedy
                    )
    finally:
        unsubscribe()


def _gate(spec: GateSpec, processes: int | None) -> Iterator[Check]:
    mode, _, share = spec.on_store_error.partition(":")
    name = f"gate {spec.name}"
    if mode == "open":
        yield Check(name, "note", 'without its store it lets everything pass, uncounted (on_store_error = "open")')
    if mode == "local":
        most = floor(1 / float(share) + 1e-9)
        detail = f"without its store each process uses {float(share):g} of every limit"
        if processes is None:
            right = f"right for at most {params.counted(most, 'process/processes')}"
            yield Check(name, "note", f"{detail}: {right}", "say how many run: --processes N")
        elif processes > most:
            remedy = f"local = {1 / processes:.3g} or less for {processes} processes"
            yield Check(name, "wrong", f"{detail}, and {processes} together use {processes * float(share):.0%}", remedy)
        else:
            together = "" if processes == 1 else f", {processes} together {processes * float(share):.0%}"
            yield Check(name, "ok", detail + together)


def _totals(gate: Gate) -> Iterator[Check]:
    """A total that the tenants of a gate are expected to use up: by what they are allowed, and by what they use now."""
    limits = gate.policy.limits
    totals = [limit for limit in limits if limit.leased and limit.by is None]
    per_tenant = [limit for limit in limits if limit.leased and limit.by is not None]
    if not totals or not per_tenant:
        return
    try:
        usage, overrides = gate.usage(), gate.overrides()
    except HeadgateError:
        return  # which the check of its store tells
    name = f"gate {gate.name}"
    for total in totals:
        row = usage[total.name]
        for limit in per_tenant:
            own = [one.value for one in overrides if one.limit == limit.name and one.key is not None]
            expected, of = max((limit.limit, f"one {limit.by}"), (sum(own), f"the {len(own)} with values of their own"))
            if row.limit < expected:
                detail = f"the limit {total.name!r} of {row.limit:g} is below the {expected:g} that {of} may use"
                yield Check(name, "note", detail, f"headgate limits set {gate.name} {total.name} {expected * 1.25:.0f}")
        if row.used >= BUSY * row.limit:
            detail = f"the limit {total.name!r} is at {row.used:g} of {row.limit:g}"
            yield Check(name, "note", detail, "raise it where that lasts: whoever comes beyond it is refused")
