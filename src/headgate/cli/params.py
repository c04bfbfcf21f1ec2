"""What commands have in common: how arguments are read, gates found, and answers printed."""

from __future__ import annotations

import json
import os
import sys
from math import isfinite

import click

import headgate
from headgate import duration
from headgate.config import file as config_file
from headgate.gate.gates import Gates
from headgate.stores.base import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from headgate import AsyncGate, Gate
    from headgate.kernel.limits import Limit

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
    Type = click.ParamType[Any]
else:
    Type = click.ParamType  # older clicks have it without a parameter


class Duration(Type):
    """Seconds, or a duration such as 250ms, 1m, PT1M."""

    name = "duration"

    def __init__(self, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            given: str | float = float(value)
        except ValueError:
            given = value
        try:
            duration.parse(given, what="it", zero=self.zero)
        except headgate.InvalidInput as error:
            self.fail(str(error).removeprefix("it: "), param, context)
        return given


class Pair(Type):
    """NAME=VALUE."""

    name = "pair"

    def __init__(self, example: str) -> None:
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, rest = value.partition("=")
        if not equals or not name or not rest:
            self.fail(f"{value!r} is not a pair; write it like {self.example}", param, context)
        return name, rest


class Cost(Pair):
    """UNIT=AMOUNT, or a number of requests."""

    def __init__(self) -> None:
        super().__init__("pu=2.5, or 3 for three requests")

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        unit, text = super().convert(value if "=" in value else f"requests={value}", param, context)
        try:
            amount = float(text)
        except ValueError:
            amount = 0.0
        if not isfinite(amount) or amount <= 0:
            self.fail(f"{text!r} is not an amount above nought; write it like {self.example}", param, context)
        return unit, amount


def _mapped(context: click.Context, param: click.Parameter, pairs: Any) -> Any:
    """Pairs as a mapping; a name that is given twice is a mistake, not a choice."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name!r} is given twice", context, param)
    return dict(pairs) or None


def _known(context: click.Context) -> Mapping[str, Any]:
    """The gates of the configuration, for completion: none where it cannot be read."""
    file = context.find_root().params.get("config") or os.environ.get("HEADGATE_CONFIG") or "headgate.toml"
    try:
        return dict(config_file.load(file))
    except headgate.HeadgateError:
        return {}


def _typed(context: click.Context, known: Mapping[str, Any]) -> Any:
    """The gate that stands before what is completed; None where there is none yet.

    Where an option lacks its value, which is what is completed then, click has not read the arguments before it.
    """
    words = [context.params.get("gate") or "", *os.environ.get("COMP_WORDS", "").split()]
    return next((known[word] for word in words if word in known), None)


def complete_gate(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    return [name for name in _known(context) if name.startswith(begun)]


def complete_limit(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """The limits of the gate that stands before, or of all."""
    known = _known(context)
    gate = _typed(context, known)
    named = list(known.values()) if gate is None else [gate]
    return sorted({limit.name for gate in named for limit in gate.limits if limit.name.startswith(begun)})


def complete_priority(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
    gate = _typed(context, _known(context))
    return [name for name in (gate.priorities or ()) if name.startswith(begun)] if gate is not None else []


gate_argument: Decorator = click.argument("gate", shell_complete=complete_gate)
optional_gate_argument: Decorator = click.argument("gate", required=False, shell_complete=complete_gate)
limit_argument: Decorator = click.argument("limit", shell_complete=complete_limit)
cost_option: Decorator = click.option(
    "--cost",
    multiple=True,
    type=Cost(),
    callback=_mapped,
    metavar="UNIT=AMOUNT",
    help="What it costs, once per unit; a number alone is requests. Default: 1 request.",
)
key_option: Decorator = click.option(
    "--key",
    multiple=True,
    type=Pair("org=acme"),
    callback=_mapped,
    metavar="BY=VALUE",
    help="Who asks, for limits that are kept by a key; once per key.",
)
priority_option: Decorator = click.option(
    "--priority",
    metavar="CLASS",
    help="The priority class. Default: the highest.",
    shell_complete=complete_priority,
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def load_gates(context: click.Context) -> Gates:
    """The gates of the configuration that the command line names."""
    file = file_of(context)
    if not os.path.exists(file):
        right = "create one with `headgate init`, or name yours: --config PATH or $HEADGATE_CONFIG"
        raise headgate.ConfigError("there is no such file", file=file, remedy=right)
    return FileGates(config_file.load(file))


def load_gates_with(context: click.Context, gates: Iterable[str], limits: Iterable[str], store: str | None) -> Gates:
    """The gates of the configuration, with limits and a store of the command line. With both no file is needed."""
    names, rules = list(gates), list(limits)
    if not names and not rules and store is None:
        return load_gates(context)
    from headgate.config.boot import with_limits

    file = file_of(context)
    config = config_file.load(file) if os.path.exists(file) or not names else None
    store = store or (os.environ.get("HEADGATE_STORE") if config is None else None)
    return FileGates(with_limits(config, names, rules, store))


class FileGates(Gates):
    """Gates whose errors name the configuration file: a store that cannot be opened is its mistake, not an argument's."""

    def __getitem__(self, name: str) -> Gate:
        try:
            return super().__getitem__(name)
        except headgate.ConfigError:
            raise
        except headgate.InvalidInput as error:
            raise headgate.ConfigError(str(error), file=self.config.path, path=f"gates.{name}") from error

    def async_gate(self, name: str) -> AsyncGate:
        try:
            return super().async_gate(name)
        except headgate.ConfigError:
            raise
        except headgate.InvalidInput as error:
            raise headgate.ConfigError(str(error), file=self.config.path, path=f"gates.{name}") from error


def path_of(config: config_file.Config) -> str:
    """The configuration file, as another directory would have to name it."""
    return os.path.abspath(config.path or "")


def stores_of(gates: Gates, names: Iterable[str] | None = None) -> str:
    """The stores of these gates for people to read, with absolute paths."""
    return ", ".join(sorted({shown(gates.config[name].store) for name in names or gates}))


def find_gate(context: click.Context, name: str) -> Gate:
    return load_gates(context)[name]


def limits_of(gates: Gates, name: str) -> tuple[Limit, ...]:
    """The limits of a gate as its file has them; where that has none, those of its guard."""
    return gates.config[name].limits or gates[name].policy.limits


def warn_if_unshared(store: str) -> None:
    """Say on standard error that a store in memory is this process's own."""
    if store.startswith("memory:"):
        text = 'the store is memory://, which no two processes share; take store = "sqlite:///headgate.db"'
        click.echo(f"headgate: note: {text}", err=True)


def make_sure(context: click.Context, yes: bool, what: str) -> None:
    """Ask before something is gone for good; where there is no terminal, only `--yes` will do."""
    if yes:
        return
    if not interactive():
        raise click.UsageError(f"{what}: say --yes", context)
    if not click.confirm(f"{what[0].upper()}{what[1:]}. Go on?", err=True):
        context.exit(0)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def interactive() -> bool:
    """Whether a person can be asked: input and errors are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def counted(number: int, noun: str) -> str:
    """`1 gate`, `2 gates`, `1,000 gates`; where there is more to say of several, both: `1 process/processes`."""
    one, _, many = noun.partition("/")
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def file_of(context: click.Context) -> str:
    """The configuration file that is meant, whether it is there or not."""
    return context.obj or os.environ.get("HEADGATE_CONFIG") or "headgate.toml"
