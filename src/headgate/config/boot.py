"""Limits from the command line of a guard: `--gate sentinel-hub --limit requests=1000/PT1M --limit pu=1000/PT1M`.

They take precedence over the limits of the file; what else the file says of the gate (how it waits, its classes, its
store) stays.
"""

from __future__ import annotations

import os
from dataclasses import replace

from .. import duration
from ..errors import ConfigError, InvalidInput
from .file import DEFAULT_STORE, Config, GateSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..kernel.limits import Limit

RIGHT = "write it like requests=1000/PT1M, pu=400000/PT744H,burst=5000, requests=190/1m,window or in_flight=150"

#: What follows a limit after a comma, beside its kind.
WORDS = ("burst", "slack", "name", "by", "zone")


def read_limit(text: str) -> Limit:
    """A limit from `UNIT=AMOUNT/PERIOD[,KIND][,burst=N][,slack=D][,name=N][,by=KEY]`. Raises InvalidInput.

    It is a bucket where no kind is named. A period of `PT0S` is a quota that never comes back; a calendar period
    (`day`, `month` …) is a quota; without a period it is a number of slots. A limit without a name is called by its unit
    and its period, as in `pu-1m`.
    """
    from ..kernel.limits import KINDS

    rule, *words = text.split(",")
    unit, equals, amount_and_period = rule.partition("=")
    amount, slash, period = amount_and_period.partition("/")
    try:
        value = float(amount)
    except ValueError:
        value = 0.0
    if not equals or not unit or not 0 < value < float("inf"):
        raise InvalidInput(f"limit {text!r}: it needs a unit and an amount above nought; {RIGHT}")
    given: dict[str, Any] = {}
    kind: str | None = None
    for word in words:
        name, equals, told = word.partition("=")
        if equals and name in WORDS and told and name not in given:
            given[name] = told
        elif word in KINDS and kind is None:
            kind = word
        else:
            raise InvalidInput(
                f"limit {text!r}: {word!r} is not a kind ({', '.join(KINDS)}) or one of {', '.join(WORDS)}; {RIGHT}"
            )
    given["unit"] = unit
    kind, per = _kind_and_period(text, kind, slash, period)
    if per is not None:
        given["per"] = per
    if kind == "concurrency":
        del given["unit"]  # a slot per permit, whatever it costs: the unit is its name
    if "burst" in given:
        given["burst"] = _amount(text, given["burst"])
    given.setdefault("name", _name(unit, per))
    whole = int(value) if value == int(value) else value
    try:
        return KINDS[kind](whole, **given)
    except TypeError:
        raise InvalidInput(f"limit {text!r}: a {kind} does not take all of {', '.join(given)}; {RIGHT}") from None


def _kind_and_period(text: str, kind: str | None, slash: str, period: str) -> tuple[str, str | None]:
    from ..kernel.limits.quota import PERIODS

    if not slash:
        if kind not in (None, "concurrency"):
            raise InvalidInput(f"limit {text!r}: a {kind} needs a period; {RIGHT}")
        return "concurrency", None
    if period in PERIODS or kind == "quota":
        return kind or "quota", period
    if duration.parse(period, what=f"limit {text!r}", zero=True) == 0:
        if kind not in (None, "quota"):
            raise InvalidInput(
                f"limit {text!r}: a period of nought is a quota that never comes back, no {kind}; {RIGHT}"
            )
        return "quota", "ever"
    return kind or "bucket", period


def _amount(text: str, told: str) -> float:
    try:
        return float(told)
    except ValueError:
        raise InvalidInput(f"limit {text!r}: a burst is a number, not {told!r}; {RIGHT}") from None


def _name(unit: str, per: str | None) -> str:
    from ..kernel.limits.quota import PERIODS

    if per is None:
        return unit
    return f"{unit}-{per if per in PERIODS else duration.render(duration.parse(per))}"


def with_limits(config: Config | None, gates: Iterable[str], limits: Iterable[str], store: str | None) -> Config:
    """The configuration with these limits for these gates; None: there is no file, and they are all there is.

    With one gate every limit is its own; with several each is written `GATE:UNIT=…`. A gate that no file describes is a
    promise gate where all of its limits are rates, and a line gate otherwise. Raises ConfigError.
    """
    from ..kernel.plan import Policy

    names = list(gates)
    given: dict[str, list[Limit]] = {name: [] for name in names}
    for text in limits:
        name, colon, rest = text.partition(":")
        if colon and name in given:
            gate, rule = name, rest
        elif len(names) == 1:
            gate, rule = names[0], text
        else:
            remedy = f"write {names[0]}:{text}" if names else f"name the gate: --gate NAME --limit {text}"
            raise ConfigError(f"--limit {text}: it does not say of which gate", remedy=remedy)
        given[gate].append(_read(rule, given[gate]))
    made: dict[str, GateSpec] = dict(config or {})
    base = DEFAULT_STORE if config is None else config.store
    for name, of_gate in given.items():
        if not of_gate:
            if name not in made:
                raise ConfigError(f"--gate {name}: it has no limits", remedy=f"add --limit; {RIGHT}")
            continue
        spec = made.get(name)
        if spec is None:
            slots = any(limit.leased for limit in of_gate)
            spec = GateSpec(name=name, limits=(), store=base, waiting="line" if slots else "promise")
        spec = replace(spec, limits=tuple(of_gate), sources={})
        try:
            Policy(name, spec.limits, waiting=spec.waiting, priorities=spec.priorities)
        except InvalidInput as error:
            raise ConfigError(f"--gate {name}: {error}", remedy=RIGHT) from error
        made[name] = spec
    if store is not None:
        from ..stores import absolute

        url = absolute(store, os.getcwd())
        made = {name: replace(spec, store=url) if spec.store == base else spec for name, spec in made.items()}
        base = url
    if config is None:
        return Config(made, store=base)
    return Config(made, store=base, path=config.path, serve=config.serve, sinks=config.sinks)


def _read(rule: str, before: list[Limit]) -> Limit:
    try:
        limit = read_limit(rule)
    except InvalidInput as error:
        raise ConfigError(str(error), path="--limit") from error
    if any(limit.name == other.name for other in before):
        raise ConfigError(
            f"--limit {rule}: there is a limit {limit.name!r} already",
            remedy=f"give it a name of its own: {rule},name=…",
        )
    return limit
