"""From `headgate.toml` and the environment to validated gate definitions.

Strict: the first thing that is unknown, of the wrong type or senseless is a `ConfigError` that names the file, the path
in it and what would be right. Nothing is accepted and then ignored. What a limit's own numbers may be is decided by the
limit's constructor alone; this module only adds where the mistake stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import duration
from ..errors import ConfigError, InvalidInput, UnknownGate, figure
from .serve import Serve, read_serve
from .toml_table import Table, did_you_mean, listed, read_text, type_of

TYPE_CHECKING = False  # mypy takes this name for typing's, so `typing` stays unimported
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..kernel.limits import Limit
    from ..kernel.model import Waiting
    from .account import AccountSpec
    from .sources import Refresher
    from .tighten import TightenRule

ENVIRONMENT: dict[str, str] = {
    "HEADGATE_CONFIG": "The configuration file. Default: `headgate.toml` in the working directory.",
    "HEADGATE_STORE": (
        "The store's URL; replaces the top-level `store` of the configuration file, not that of a gate. "
        "A relative path in it starts at the working directory."
    ),
    "HEADGATE_PERMIT": "Not read, but set: the id of the permit, for the command of `headgate acquire GATE -- CMD`.",
    "HEADGATE_TOKEN": "The token for a guard, where a store's `http://` URL has none.",
}
"""Every environment variable that Headgate reads or sets. `docs/reference/environment.md` repeats it, by a test."""

TOP_KEYS: dict[str, str] = {
    "store": "the URL of the store of every gate that names none itself",
    "gates": "one table per gate",
    "serve": "how a guard serves them: `headgate serve`",
    "sinks": "where events are told",
}

GATE_KEYS: dict[str, str] = {
    "limits": "an array of limits, always asked together",
    "store": "the URL of this gate's own store",
    "waiting": "how it waits: line or promise",
    "priorities": "class name = share of each limit, the highest class first",
    "on_store_error": "what it does without its store: closed, open or local",
    "max_delay": "the longest promise it makes (promise gates)",
    "tighten": "whether limits are lowered by themselves when the upstream refuses what was granted",
    "account": "the Sentinel Hub account that limits are fetched from",
    "patience": "the age at which a waiting ask counts as the highest class (line gates)",
    "claim": "how long a called ticket keeps its charge (line gates)",
}

DEFAULT_FILE = "headgate.toml"
DEFAULT_STORE = "memory://"
DEFAULT_REFRESH = "1m"

#: Durations of a gate: key → the one way of waiting it belongs to. Elsewhere it would be accepted and then ignored.
_GATE_DURATIONS = {"max_delay": "promise", "patience": "line", "claim": "line"}
#: How a constructor refuses a value: as it should, or because a number of 400 digits is none.
_REFUSALS = (InvalidInput, OverflowError)
#: Stores that know the limits of their gates.
_GUARDS = ("http://", "https://")
_LIMIT_EXAMPLE = '{ window = 190, per = "1m", name = "rpm" }'


@dataclass(frozen=True, slots=True)
class GateSpec:
    """One gate as the configuration describes it: `Gate(**spec.arguments())` makes it. None means: the gate's default.

    `sources` holds, by the name of the limit, what keeps a value fresh that comes from outside. Durations are as they
    were written.
    """

    name: str
    #: None at all: those of its guard.
    limits: tuple[Limit, ...]
    store: str = field(default=DEFAULT_STORE, repr=False)  # it may hold a password
    waiting: Waiting = "line"
    priorities: dict[str, float] | None = None
    on_store_error: str = "closed"
    max_delay: str | float | None = None
    patience: str | float | None = None
    claim: str | float | None = None
    sources: dict[str, Refresher] = field(default_factory=dict)
    #: How it lowers its limits by itself; None: it does not.
    tighten: TightenRule | None = None
    #: Where limits are fetched from, beside those that are here.
    account: AccountSpec | None = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Gate` and `AsyncGate`, without those that were left to their defaults."""
        arguments: dict[str, Any] = {"name": self.name, "store": self.store, "on_store_error": self.on_store_error}
        if self.limits:
            arguments |= {"limits": list(self.limits), "waiting": self.waiting}
        for key in ("priorities", *_GATE_DURATIONS):
            if (value := getattr(self, key)) is not None:
                arguments[key] = value
        if self.sources:
            arguments["sources"] = self.sources
        return arguments


class Config(Mapping[str, GateSpec]):
    """Gate definitions by name, with the `path` they were read from, the default `store`, and how a guard serves.

    `sinks` are where events are told; None: the file does not say, and it stays as it is.
    """

    def __init__(
        self,
        gates: Mapping[str, GateSpec],
        *,
        store: str = DEFAULT_STORE,
        path: str | None = None,
        serve: Serve | None = None,
        sinks: tuple[str, ...] | None = None,
    ) -> None:
        self._gates = dict(gates)
        self.store = store
        self.path = path
        self.serve = Serve() if serve is None else serve
        self.sinks = sinks

    def __getitem__(self, name: str) -> GateSpec:
        try:
            return self._gates[name]
        except KeyError:
            remedy = f"{did_you_mean(name, self._gates)}it has {listed(self._gates)}"
            raise UnknownGate(f"there is no gate {name!r}", file=self.path, path="gates", remedy=remedy) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._gates)

    def __len__(self) -> int:
        return len(self._gates)

    def __repr__(self) -> str:
        return f"<Config {self.path}: {', '.join(self._gates)}>"


def load(path: str | os.PathLike[str] | None = None, env: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration file: `path`, else `$HEADGATE_CONFIG`, else `headgate.toml` in the working directory.

    `$HEADGATE_STORE` replaces the file's top-level `store`. An empty variable counts as not set. Nothing but the file
    is read: no store is opened and no source asked. A relative path in the file starts at the file. Raises `ConfigError`.
    """
    if path is not None:
        file, looked = os.fspath(path), "as the caller said"
    elif env.get("HEADGATE_CONFIG"):
        file, looked = env["HEADGATE_CONFIG"], "as $HEADGATE_CONFIG says"
    else:
        file, looked = DEFAULT_FILE, f"in {os.getcwd()}, as neither a path nor $HEADGATE_CONFIG was given"
    return parse(_read(file, looked), file=file, store=env.get("HEADGATE_STORE") or None)


def parse(text: str, *, file: str = DEFAULT_FILE, store: str | None = None) -> Config:
    """A configuration from its text; `file` is what messages call it, `store` replaces its top-level `store`."""
    top = Table(file, "", read_toml(text, file))
    top.only(TOP_KEYS)
    variable = "HEADGATE_STORE"
    own_store = _store(top, "store", DEFAULT_STORE)  # looked at even where it is replaced: a mistake in it is still one
    if store is None:
        store = own_store
    else:  # which is in no file: a relative path in it starts at the working directory
        store = _store(Table("environment", "", {variable: store}), variable, "", folder=os.getcwd())
    gates = top.table("gates")
    if not gates.values:
        raise top.refuse("there are no gates", f"add one: [gates.adobe] with limits = [{_LIMIT_EXAMPLE}]", key="gates")
    made = {name: read_gate(gates.table(name), name, store) for name in gates.values}
    return Config(made, store=store, path=file, serve=read_serve(top.table("serve")), sinks=_sinks(top))


def _sinks(top: Table) -> tuple[str, ...] | None:
    from ..sinks import SINKS

    names = top.values.get("sinks")
    if names is None:
        return None
    right = f"it must be an array of names: {listed(SINKS)}"
    if not isinstance(names, list):
        raise top.refuse(f"it is {type_of(names)}", right, key="sinks")
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise top.refuse(f"it is {type_of(name)}", right, key=f"sinks[{at}]")
        if name not in SINKS:
            raise top.refuse(f"there is no sink {name!r}", f"{did_you_mean(name, SINKS)}{right}", key=f"sinks[{at}]")
        if name in names[:at]:
            raise top.refuse(f"{name!r} is there twice", "name each sink once", key=f"sinks[{at}]")
    return tuple(names)


def _read(file: str, looked: str) -> str:
    try:
        return read_text(file, f"it must be a file that this process may read (looked {looked})")
    except FileNotFoundError:
        remedy = "create one with `headgate init`, or name yours: load(path) or $HEADGATE_CONFIG"
        raise ConfigError(f"there is no such file (looked {looked})", file=file, remedy=remedy) from None


def read_toml(text: str, file: str) -> dict[str, Any]:
    """The tables of a TOML text; `file` is what messages call it. Raises `ConfigError` with the line and the column."""
    import re
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError of another kind: a number of thousands of digits
        found = re.search(r" \(at (.*)\)$", str(error))
        problem = str(error)[: found.start()] if found else str(error)
        raise ConfigError(
            f"it is not TOML: {problem}", file=file, path=found[1] if found else None, remedy="see https://toml.io"
        ) from None


def _store(table: Table, key: str, default: str, folder: str | None = None) -> str:
    """The store's URL under a key. A relative path in it starts at the folder, by default that of the file."""
    import re

    from ..stores import absolute

    url = table.text(key)
    if url is None:
        return default
    if not re.match(r"[a-z][a-z0-9+.-]*://", url):
        # Not repeated in the message: it may hold a password, and messages end up in logs.
        raise table.refuse(
            "it is not a store's URL",
            "write it like memory://, sqlite:///headgate.db or redis://localhost:6379/0",
            key=key,
        )
    return absolute(url, table.folder if folder is None else folder)


def read_gate(table: Table, name: str, store: str) -> GateSpec:
    """A gate from its table, under a name; `store` is for one that names none itself. Raises `ConfigError`."""
    from ..kernel.limits import check_name
    from ..kernel.plan import WAITING, Policy

    with table.blame():
        check_name("gate name", name)
    table.only(GATE_KEYS)
    url = _store(table, "store", store)
    if "limits" not in table.values and url.startswith(_GUARDS):
        for key in table.values:
            if key not in ("store", "on_store_error"):
                raise table.refuse(
                    f"a gate without limits takes those of its guard, and its {key} too",
                    "leave it out, or write the limits here as well",
                    key=key,
                )
        return GateSpec(name=name, limits=(), store=url, on_store_error=_on_store_error(table))
    waiting: Any = table.choice("waiting", WAITING, "line")
    account = _account(table)
    limits, sources = _limits(table, name) if account is None or "limits" in table.values else ((), {})
    for index, limit in enumerate(limits):
        if waiting == "promise" and limit.leased:
            raise table.refuse(
                f"limit {limit.name!r} is a {limit.kind}, and a promise gate has rates and quotas only: nobody knows "
                "when a slot will be free",
                'take waiting = "line" (the default), or put this limit in a gate of its own',
                key=f"limits[{index}]",
            )
    for key, belongs in _GATE_DURATIONS.items():
        if key in table.values and waiting != belongs:
            raise table.refuse(
                f"{key} means nothing in a gate with waiting = {waiting!r}",
                f'leave it out, or set waiting = "{belongs}"',
                key=key,
            )
    priorities = _priorities(table)
    if limits:
        with table.blame():  # whatever else a gate would refuse when it is made
            Policy(name, limits, waiting=waiting, priorities=priorities)
    return GateSpec(
        name=name,
        limits=limits,
        store=url,
        waiting=waiting,
        priorities=priorities,
        on_store_error=_on_store_error(table),
        max_delay=table.duration("max_delay", zero=True),
        patience=table.duration("patience"),
        claim=table.duration("claim"),
        sources=sources,
        tighten=_tighten(table),
        account=account,
    )


def _tighten(gate: Table) -> TightenRule | None:
    from .tighten import read_rule

    with gate.blame("tighten"):
        return read_rule(gate.values.get("tighten", False))


def _account(gate: Table) -> AccountSpec | None:
    from .account import ACCOUNT_KEYS, AccountSpec

    if "account" not in gate.values:
        return None
    table = gate.table("account", 'it must be a table like { url = "https://…", id = "…", client_id = "env:…", … }')
    table.only(ACCOUNT_KEYS)
    for key in ("url", "id", "client_id", "client_secret"):
        if not isinstance(table.values.get(key), str):
            raise table.refuse(f"{key} is missing", ACCOUNT_KEYS[key], key=key)
    seconds = {
        name: duration.parse(given) / 1e6
        for key, name in (("refresh", "refresh_s"), ("timeout", "timeout_s"))
        if (given := table.duration(key)) is not None
    }
    with table.blame():
        return AccountSpec(
            table.values["url"],
            table.values["id"],
            table.values["client_id"],
            table.values["client_secret"],
            table.text("token_url") or "",
            **seconds,
            folder=table.folder,
        )


def _limits(gate: Table, gate_name: str) -> tuple[tuple[Limit, ...], dict[str, Refresher]]:
    entries = gate.values.get("limits")
    if not isinstance(entries, list) or not entries:
        problem = "there are no limits" if entries is None or entries == [] else f"limits is {type_of(entries)}"
        raise gate.refuse(problem, f"it must be an array of limits: limits = [{_LIMIT_EXAMPLE}]", key="limits")
    limits: list[Limit] = []
    sources: dict[str, Refresher] = {}
    for index, entry in enumerate(entries):
        table = gate.inner(f"limits[{index}]", entry, f"a limit is a table like {_LIMIT_EXAMPLE}")
        limit, source = _limit(table, gate_name)
        for other, earlier in enumerate(limits):
            if earlier.name == limit.name:
                raise table.refuse(
                    f"limits[{other}] has the name {limit.name!r} too",
                    f'give each limit of a gate its own name, such as name = "{limit.name}-2"',
                    key="name" if "name" in table.values else None,
                )
        limits.append(limit)
        if source is not None:
            sources[limit.name] = source
    return tuple(limits), sources


def _limit(table: Table, gate_name: str) -> tuple[Limit, Refresher | None]:
    import inspect

    from ..kernel.limits import KINDS

    kinds = [key for key in table.values if key in KINDS]
    if len(kinds) != 1:
        problem = f"it is {' and '.join(kinds)} at once" if kinds else "it does not say what kind of limit it is"
        typo = "" if kinds else next(filter(None, (did_you_mean(key, KINDS) for key in table.values)), "")
        raise table.refuse(problem, f"{typo}each limit has one of {listed(KINDS)}, as in {_LIMIT_EXAMPLE}")
    (kind,) = kinds
    limit_class = KINDS[kind]
    constructor: Callable[..., Limit] = limit_class
    empty = inspect.Parameter.empty
    defaults = {key: parameter.default for key, parameter in inspect.signature(constructor).parameters.items()}
    del defaults["limit"]  # stands under the kind's own name
    table.only((kind, *defaults, "source", "refresh"), f"a {kind} takes")
    for key, default in defaults.items():
        if default is empty and key not in table.values:
            raise table.refuse(f"{key} is missing", f'a {kind} needs it, as in {key} = "1m"', key=key)
    for key, value in table.values.items():
        if isinstance(value, list | dict) and key not in limit_class.tables:
            raise table.refuse(f"it is {type_of(value)}", "it must be a single value", key=key)
    arguments = {key: value for key, value in table.values.items() if key in defaults}
    for key, made_of in limit_class.tables.items():
        if key in arguments:
            arguments[key] = _inner(table, key, made_of)
    arguments["limit"] = table.values[kind]

    def made(**changed: Any) -> Limit:
        return constructor(**(arguments | changed))

    try:
        limit = made()
    except _REFUSALS as error:
        # The key to blame is the one that a harmless value in its place would mend. So the rules for values stand in
        # the limits alone, and a new kind of limit needs no second copy of them here.
        harmless = {key: "1m" if defaults[key] is empty else defaults[key] for key in arguments if key in defaults}
        harmless["limit"] = 1
        culprit = next((key for key, plain in harmless.items() if _works(made, key, plain)), None)
        told = str(error) if isinstance(error, InvalidInput) else "it is too large to count with; stay below 1e300"
        raise ConfigError(told, file=table.file, path=table.at(kind if culprit == "limit" else culprit)) from error
    return limit, _source(table, limit, f"{gate_name}/{limit.name}", lambda value: made(limit=value))


def _works(made: Callable[..., Limit], key: str, value: object) -> bool:
    try:
        made(**{key: value})
    except _REFUSALS:
        return False
    return True


def _inner(limit: Table, key: str, classes: Mapping[str, Callable[..., Any]]) -> object:
    """The argument of a limit that is written as a table: what one of its classes makes of it; `true` is an empty one."""
    import inspect

    value = limit.values[key]
    default = next(iter(classes))
    if isinstance(value, bool):
        return classes[default]() if value else None
    known = inspect.signature(classes[default]).parameters
    example = ", ".join(f"{name} = {parameter.default}" for name, parameter in list(known.items())[:2])
    table = limit.inner(key, value, f"it must be true, or a table like {{ {example} }}")
    rule = table.choice("rule", tuple(classes), default)
    table.only(("rule", *inspect.signature(classes[rule]).parameters), f"the keys of the rule {rule!r} are")
    with table.blame():
        return classes[rule](**{name: given for name, given in table.values.items() if name != "rule"})


def _source(table: Table, limit: Limit, name: str, check: Callable[[float], object]) -> Refresher | None:
    text = table.text("source")
    every = table.duration("refresh")
    if text is None:
        if every is not None:
            raise table.refuse(
                "refresh means nothing without a source", 'leave it out, or add source = "env:ADOBE_RPM"', key="refresh"
            )
        return None
    from .sources import Refresher, open_source

    with table.blame("source"):
        source = open_source(text, table.folder)
    seconds = duration.parse(DEFAULT_REFRESH if every is None else every) / 1e6
    return Refresher(source, limit.limit, every=seconds, name=name, check=check)


def _priorities(gate: Table) -> dict[str, float] | None:
    from ..kernel.limits import check_name

    if "priorities" not in gate.values:
        return None
    example = "priorities = { live = 1.0, batch = 0.8 }"
    table = gate.table("priorities", f"it must be a table of classes and their shares: {example}")
    if not table.values:
        raise gate.refuse("it names no class", f"leave it out, or name some: {example}", key="priorities")
    above = 1.0
    for name, share in table.values.items():
        with table.blame(name):
            check_name("priority class", name)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise table.refuse(
                f"{share!r} is not a share", "it must be a number above 0 and at most 1, like 0.8", key=name
            )
        if share > above:
            raise table.refuse(
                f"the share {figure(share)} is larger than that of the class above it ({figure(above)})",
                f"put the highest class first, and give each at most the share of the one above: {example}",
                key=name,
            )
        above = share
    return dict(table.values)


def _on_store_error(gate: Table) -> str:
    """`closed`, `open`, or `local:0.02` for all the ways to write that."""
    right = 'it must be "closed" (the default), "open", or { local = 0.02 }'
    value = gate.values.get("on_store_error", "closed")
    if isinstance(value, str):
        word, colon, rest = value.partition(":")
        if value in ("closed", "open"):
            return value
        try:
            share: object = float(rest) if word == "local" and colon else None
        except ValueError:
            share = None
        if share is None:
            raise gate.refuse(f"{value!r} is not one of its values", right, key="on_store_error")
        place = gate
        key = "on_store_error"
    else:
        place = gate.inner("on_store_error", value, right)
        place.only(("local",))
        key = "local"
        if key not in place.values:
            raise place.refuse("it is an empty table", right)
        share = place.values[key]
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        remedy = "local is the share of each limit that one process may use: a number above 0 and at most 1, like 0.02"
        raise place.refuse(f"{share!r} is not a share", remedy, key=key)
    return f"local:{share!r}"
