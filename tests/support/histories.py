"""Generated histories: what a fleet does to one gate, as values that Hypothesis makes small and people can read.

A *deed* is a tuple of plain values ("stand", (0, 1, 2, 0), 1). A `History` turns deeds into commands, has a pair of stores
execute them, and remembers what was granted and who stands, so that later deeds can be about it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any, Protocol

from hypothesis import strategies as st

from headgate import Aimd, Bucket, Concurrency, Probing, Quota, Window
from headgate.errors import AttemptOver, IdConflict
from headgate.kernel.commands import (
    Admit,
    Cancel,
    Command,
    Configure,
    Extend,
    Pause,
    Peek,
    Release,
    Renew,
    Reset,
    Settle,
    Stamp,
    Stand,
    Tighten,
)
from headgate.kernel.model import SECOND, Ended, Grant, Snapshot, Wait
from headgate.kernel.plan import Policy
from headgate.testing import FakeClock
from headgate.testing.clock import START


def plain(value: Any) -> Any:
    """Tuples and lists alike: a store may hand back either."""
    if isinstance(value, tuple | list):
        return tuple(plain(part) for part in value)
    if isinstance(value, Exception):
        return (type(value), str(value))
    if isinstance(value, Snapshot):
        # Leases of the same moment are in no order.
        return replace(value, leases=tuple(sorted(value.leases, key=lambda row: (row.granted_at, row.id))))
    return value


# --- what is asked ----------------------------------------------------------------------------------------------------

CLASSES = {"live": 1.0, "batch": 0.5}

#: Gate → versions of its configuration, all of which are in use side by side.
FAMILIES: dict[str, list[Policy]] = {
    "rates": [
        Policy("rates", [Window(5, per="10s", name="w"), Bucket(4, per="4s", name="b", by="org")]),
        Policy("rates", [Window(7, per="10s", name="w"), Bucket(4, per="8s", burst=3, name="b", by="org")]),
    ],
    "slots": [
        Policy("slots", [Concurrency(2, lease="5s", name="all"), Concurrency(1, lease="5s", name="org", by="org")]),
        Policy("slots", [Concurrency(3, lease="4s", name="all")], claim=2 * SECOND),
    ],
    "classes": [
        Policy(
            "classes",
            [Window(6, per="10s", name="w"), Concurrency(4, lease="8s", name="c")],
            priorities=CLASSES,
            patience=7 * SECOND,
        ),
        Policy(
            "classes",
            [Window(8, per="10s", name="w"), Concurrency(4, lease="8s", name="c")],
            priorities={**CLASSES, "idle": 0.25},
            patience=9 * SECOND,
        ),
    ],
    "lanes": [
        Policy(
            "lanes",
            [
                Bucket(3, per="3s", name="b", by="org"),
                Window(9, per="5s", name="w"),
                Window(4, per="5s", name="u", by="user"),
            ],
            priorities=CLASSES,
            patience=6 * SECOND,
        ),
    ],
    "adaptive": [
        Policy("adaptive", [Concurrency(6, lease="9s", adaptive=Aimd(start=3, minimum=1, increase_every=2), name="c")]),
        Policy("adaptive", [Concurrency(4, lease="9s", adaptive=Aimd(start=2, minimum=2, decrease=1), name="c")]),
    ],
    "probing": [
        Policy(
            "probing",
            [Concurrency(9, lease="9s", adaptive=Probing(start=3, minimum=1, probe_every=1, probe_most=2), name="c")],
        ),
        Policy("probing", [Concurrency(9, lease="9s", adaptive=Aimd(start=3, minimum=1, increase_every=2), name="c")]),
    ],
    "shares": [
        Policy(
            "shares",
            [Concurrency(6, lease="9s", adaptive=Aimd(start=4, minimum=1, increase_every=2), name="c")],
            priorities=CLASSES,
            patience=7 * SECOND,
        ),
        Policy(
            "shares",
            [Concurrency(8, lease="9s", adaptive=Aimd(start=3, minimum=1, decrease=1), name="c", by="org")],
            priorities={**CLASSES, "idle": 0.25},
            patience=7 * SECOND,
        ),
    ],
    "promises": [
        Policy("promises", [Bucket(3, per="3s", name="b"), Window(6, per="10s", name="w")], waiting="promise"),
        Policy("promises", [Bucket(4, per="3s", burst=5, name="b"), Window(6, per="9s", name="w")], waiting="promise"),
    ],
    "places": [
        Policy(
            "places",
            [Window(4, per="6s", name="w", by="org"), Bucket(9, per="9s", name="b"), Quota(9, per="minute", name="q")],
            waiting="promise",
            priorities=CLASSES,
        ),
    ],
    "quota": [
        Policy("quota", [Quota(5, per="minute", name="q"), Bucket(10, per="1m", name="b", unit="pu")]),
        Policy("quota", [Quota(9, per="minute", name="q", slack="2s"), Bucket(10, per="1m", name="b", unit="pu")]),
    ],
    "calendar": [
        Policy(
            "calendar",
            [
                Quota(4, per="day", zone="Europe/Paris", name="d", by="org"),
                Quota(9, per="hour", name="h"),
                Concurrency(3, name="c"),
            ],
        ),
    ],
    # Under one name two kinds, of which the first to be charged stays until a reset: asks of the other are refused.
    "kinds": [
        Policy(
            "kinds",
            [
                Window(3, per="6s", name="x"),
                Concurrency(2, lease="5s", name="c"),
                Bucket(2, per="4s", name="k", by="org"),
            ],
        ),
        Policy(
            "kinds",
            [
                Bucket(3, per="6s", name="x"),
                Concurrency(2, lease="5s", name="c"),
                Window(2, per="4s", name="k", by="org"),
            ],
        ),
    ],
}  # fmt: skip

#: version of the configuration, cost, key, class
ASK = st.tuples(st.integers(0, 1), st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(0, 2), st.integers(0, 3))
NUMBER = st.integers(0, 20)
OUTCOME = st.sampled_from(["ok", "error", "unsent", "rate_limited", "overloaded"])
AMOUNT = st.sampled_from([0.5, 1, 3, 8])
DELAY = st.sampled_from([0, 0, SECOND, 3 * SECOND])
SESSION = st.integers(0, 2)
#: Which ask under a known id it is; 0: one that has no name.
ATTEMPT = st.integers(0, 3)

#: How much time passes; also backwards, as clocks in the field do.
PASSED = st.sampled_from(
    [0, 0, 0, 1, 50_000, SECOND // 3, SECOND // 3, SECOND, 2 * SECOND, 4 * SECOND, 11 * SECOND, 61 * SECOND, -SECOND]
)  # fmt: skip

ASKING = (
    st.tuples(st.just("admit"), ASK),
    st.tuples(st.just("stand"), ASK, SESSION),
    st.tuples(st.just("stand"), ASK, SESSION),
    st.tuples(st.just("known"), st.integers(0, 3), ASK, st.booleans(), ATTEMPT),
    st.tuples(st.just("known"), st.integers(0, 1), st.just((0, 0, 0, 0)), st.just(False), ATTEMPT),
    st.tuples(st.just("remote"), ASK, SESSION),
    st.tuples(st.just("again"), NUMBER),
    st.tuples(st.just("take"), SESSION),
    st.tuples(st.just("take"), SESSION),
    st.tuples(st.just("elsewhere"), NUMBER, SESSION),
)
#: Those who come first, all at once: a line for what follows.
CROWD = st.lists(st.tuples(st.just("stand"), ASK, SESSION), max_size=14)
ENDING = (
    st.tuples(st.just("settle"), NUMBER, OUTCOME, DELAY),
    st.tuples(st.just("confirm"), NUMBER),
    st.tuples(st.just("actual"), NUMBER, AMOUNT, st.none() | OUTCOME),
    st.tuples(st.just("release"), NUMBER, OUTCOME, DELAY, st.none() | AMOUNT, st.sampled_from([0, 0, 1, SECOND])),
    st.tuples(st.just("stamp"), NUMBER, st.booleans(), st.sampled_from([0, 0, 0, SECOND // 5, 2 * SECOND])),
    st.tuples(st.just("late"), NUMBER, st.none() | OUTCOME),
    st.tuples(st.just("cancel"), NUMBER),
    st.tuples(st.just("withdraw"), st.integers(0, 3), ATTEMPT, st.booleans()),
    st.just(("overtake",)),
    st.tuples(st.just("beat"), SESSION),
    st.tuples(st.just("extend"), NUMBER, st.sampled_from([0, SECOND, 60 * SECOND])),
)
#: Of which limit, to what, for which key, for how long, and why: "tighten" lowers only, and with no value ends that.
OVERRIDING = st.tuples(
    st.just("override"),
    st.integers(0, 2),
    st.sampled_from([None, 1, 2, 3.5, 7]),
    st.none() | st.integers(0, 2),
    st.sampled_from([0, 0, SECOND, 3 * SECOND, 60 * SECOND]),
    st.sampled_from(["", "", "why", "tighten", "tighten"]),
)
CHANGING = (
    OVERRIDING,
    st.tuples(st.just("pause"), st.sampled_from([0, SECOND, 3 * SECOND])),
    st.tuples(st.just("reset"), st.none() | st.integers(0, 2)),
    st.tuples(st.just("look"), st.none() | ASK),
)  # fmt: skip
#: The state is lost; and another process goes on, which may not know that it was.
LOSING = (st.just(("lose",)), st.tuples(st.just("turn"), st.integers(0, 2)))

DEEDS = st.one_of(*ASKING, *ENDING, *CHANGING)


def some_ask(numbers: Random) -> tuple[int, int, int, int]:
    """An ask for long histories, which are not made small."""
    return (numbers.randrange(2), numbers.choice([0, 0, 0, 1, 2, 3]), numbers.randrange(3), numbers.randrange(4))


def usual_deed(numbers: Random) -> tuple[Any, ...]:
    """What goes on all day, in the same way."""
    number, session = numbers.randrange(6), numbers.randrange(3)
    return numbers.choice(
        [
            ("admit", some_ask(numbers)),
            ("stand", some_ask(numbers), session),
            ("stand", some_ask(numbers), session),
            ("settle", number, numbers.choice(["ok", "unsent"]), 0),
            ("release", number, numbers.choice(["ok", "unsent"]), 0, None, numbers.choice([0, 0, SECOND])),
            ("stamp", number, numbers.random() < 0.5, numbers.choice([0, 0, SECOND])),
            ("again", number),
            ("take", session),
            ("beat", session),
            ("look", some_ask(numbers)),
            ("known", number % 3, (0, 0, 0, 0), False, number % 4),
            ("late", number, "ok"),
            ("withdraw", number % 3, session, False),
            ("remote", some_ask(numbers), session),
            ("overtake",),
        ]
    )


# --- what becomes of it -----------------------------------------------------------------------------------------------


def _attempt(number: int = 0) -> str:
    return f"attempt-{number}" if number else ""


class Pair(Protocol):
    """Two stores that must not differ."""

    clock: FakeClock

    def listen(self, ticket: str) -> None:
        """Note when this ticket is woken."""

    def execute(self, commands: list[Command], which: int = 0) -> list[Any]:
        """The replies, which are the same on both; else an AssertionError says where they differ."""


class History:
    """Turns deeds into commands on one gate, and remembers what was granted and who stands."""

    def __init__(self, pair: Any, policies: list[Policy]) -> None:
        self.pair = pair
        self.policies = policies
        self.made = 0
        self.steps = 0
        #: The process that acts, of those that the pair has.
        self.turn = 0
        #: id → how it was asked, in order
        self.asks: dict[str, Admit] = {}
        self.at: dict[str, int] = {}
        self.confirmed: dict[str, int] = {}
        self.fence: dict[str, int] = {}
        #: every grant that was given: id, grant
        self.past: list[tuple[str, Grant]] = []
        #: who stands in line as far as is known, in order
        self.standing: dict[str, Admit] = {}
        self.story: list[str] = []

    @property
    def promises(self) -> bool:
        return self.policies[0].waiting == "promise"

    def plan(self, ask: Any) -> Any:
        version, cost, key, rank = ask
        policy = self.policies[version % len(self.policies)]
        amount: Any = (1, 2, 4, 50)[cost]
        if "pu" in policy.units:
            amount = {"requests": 1, "pu": (0.5, 2.5, 7, 50)[cost]}
        names = [None, *policy.priorities]
        values = {"org": "abc"[key], "user": "xy"[key % 2]}
        return policy.plan(amount, {by: values[by] for by in policy.keys} or None, names[rank % len(names)])

    def _asked(self, command: Admit) -> Admit:
        if command.id not in self.asks:
            self.pair.listen(command.id)
            self.asks[command.id] = command
        return command

    def _id(self) -> str:
        self.made += 1
        return f"ask-{self.made}"

    def _some(self, number: int) -> Admit:
        """One of the last that were asked."""
        if not self.asks:
            return self.command("stand", (0, 0, 0, 0), 0)  # type: ignore[return-value]
        return list(self.asks.values())[-1 - number % len(self.asks)]

    def command(self, deed: str, *rest: Any) -> Command:
        line = not self.promises
        if deed == "admit" and line:
            plan = self.plan(rest[0])
            return self._asked(Admit(plan, self._id(), "me", plan.lease))
        if deed in ("admit", "stand"):
            plan = self.plan(rest[0])
            session = f"session-{rest[1]}" if rest[1:] else ""
            return self._asked(
                Stand(plan, self._id(), None, plan.lease, waits=line, session=session, latest=5 * SECOND)
            )
        if deed == "known":
            plan = self.plan(rest[1])
            id = f"known-{rest[0]}"
            if rest[2] and id in self.asks:
                return self.asks[id]
            waits = line and rest[0] % 2 == 0
            session, attempt = f"session-{rest[0] % 3}", _attempt(*rest[3:])
            return self._asked(
                Stand(plan, id, "you", plan.lease, remembered=True, waits=waits, session=session, attempt=attempt)
            )
        if deed == "remote":
            plan = self.plan(rest[0])
            session = f"session-{rest[1]}"
            return self._asked(Stand(plan, self._id(), None, plan.lease, remembered=True, waits=line, session=session))
        if deed == "overtake":  # what undoes the next ask whose id was made, before that comes
            return Cancel(self.policies[0], f"ask-{self.made + 1}")
        if deed == "withdraw":
            return Cancel(self.policies[0], f"known-{rest[0]}", _attempt(rest[1]), rest[2])
        if deed == "late":
            return self._late(*rest)
        if deed == "again":
            return self._some(rest[0])
        if deed == "elsewhere":
            return self._elsewhere(self._some(rest[0]), f"session-{rest[1]}")
        if deed == "extend":
            ask = self._some(rest[0])
            return Extend(ask.plan.policy, ask.id, rest[1])
        if deed == "stamp":
            if self.past and not rest[1]:
                id, grant = self.past[-1 - rest[0] % len(self.past)]
                ask = self.asks[id]
                if ask.attempt:  # the holder of an earlier grant, perhaps long after it ended
                    return Stamp(ask.plan.policy, id, ask.plan, grant.at, rest[2], grant.fence)
            ask = self._some(rest[0])
            # By its id alone, or as the permit's own process does, which knows when it was granted: not all is on record.
            plan, at = (None, 0) if rest[1] else (ask.plan, self.at.get(ask.id, self.pair.clock()))
            return Stamp(ask.plan.policy, ask.id, plan, at, rest[2])
        if deed == "take":
            mine = [ask for ask in self.standing.values() if ask.session == f"session-{rest[0]}"]
            return mine[0] if mine else self._some(rest[0])
        if deed in ("settle", "confirm", "actual"):
            return self._settle(self._some(rest[0]), deed, *rest[1:])
        if deed == "release":
            ask = self._some(rest[0])
            actual = None if rest[3] is None else {self._unit(ask): rest[3]}
            return Release(ask.plan.policy, ask.id, rest[1], rest[2], actual, rest[4])
        if deed == "cancel":
            ask = self._some(rest[0])
            self.standing.pop(ask.id, None)
            return Cancel(ask.plan.policy, ask.id, ask.attempt)
        if deed == "beat":
            return self._beat(f"session-{rest[0]}")
        gate = self.policies[0].name
        if deed == "override":
            limits = self.policies[0].limits
            limit = limits[rest[0] % len(limits)]
            keyed = limit.by is not None and rest[2] is not None
            member, length = f"{limit.name}|{'abc'[rest[2]]}" if keyed else limit.name, rest[3]
            if rest[4] == "tighten" and rest[1] is not None and length:
                return Tighten(gate, member, rest[1], limit.limit, length, "for a test")
            tightened = rest[4] == "tighten" and rest[1] is None
            return Configure(gate, member, rest[1], length, rest[4], tightened)
        if deed == "pause":
            return Pause(gate, rest[0], "for a test")
        if deed == "reset":
            limits = self.policies[0].limits
            return Reset(gate, None if rest[0] is None else limits[rest[0] % len(limits)].name)
        assert deed == "look", deed
        plan = None if rest[0] is None else self.plan(rest[0])
        policy = self.policies[0] if plan is None else plan.policy
        keyed = next((limit.name for limit in policy.limits if limit.by), None)
        return Peek(policy, leases=True, plan=plan, waiters=True, keys=keyed, top=2)

    def _elsewhere(self, ask: Admit, session: str) -> Admit:
        """The same ask again, in another process."""
        if not ask.waits:
            return ask
        same = {"waits": True, "remembered": ask.remembered, "latest": ask.latest, "attempt": ask.attempt}
        return self._asked(Stand(ask.plan, ask.id, ask.holder, ask.lease, session=session, **same))

    def _unit(self, ask: Admit) -> str:
        return "pu" if "pu" in ask.plan.policy.units else "requests"

    def _settle(self, ask: Admit, deed: str, *rest: Any) -> Settle:
        outcome, delay, actual = None, 0, None
        if deed == "settle":
            outcome, delay = rest
        elif deed == "actual":
            actual, outcome = {self._unit(ask): rest[0]}, rest[1]
        at = self.at.get(ask.id, self.pair.clock())
        return Settle(ask.plan, at, ask.id, outcome, True, delay, actual, self.confirmed.get(ask.id, 0))

    def _late(self, number: int, outcome: str | None) -> Settle:
        """What the holder of an earlier grant says of it, perhaps long after it ended."""
        if not self.past:
            return self._settle(self._some(number), "settle", outcome, 0)
        id, grant = self.past[-1 - number % len(self.past)]
        return Settle(self.asks[id].plan, grant.at, id, outcome, fence=grant.fence)

    def _beat(self, session: str) -> Renew:
        asks = list(self.asks.values())
        tickets = tuple(ask.id for ask in asks if ask.session == session)[-4:]
        held = [ask for ask in asks if ask.lease and ask.id in self.at][-3:]
        leases = tuple((ask.plan, ask.id, self.at[ask.id], ask.lease, self.fence[ask.id], ask.holder) for ask in held)
        return Renew(self.policies[0].name, leases, session, tickets)

    def execute(self, deeds: list[Any], which: int = 0) -> None:
        """Do these as one batch, in the process whose turn it is; a loss of state parts it, and another process's turn."""
        batch: list[Any] = []
        for deed in deeds:
            if deed[0] not in ("lose", "turn"):
                batch.append(deed)
                continue
            self._run(batch, which or self.turn)
            batch = []
            if deed[0] == "turn":
                self.turn = deed[1]
                self.story.append(f"{self._moment()}  process {self.turn} goes on")
            else:
                self.story.append(f"{self._moment()}  the state is lost")
                self.pair.lose(self.policies[0].name)
        self._run(batch, which or self.turn)

    def _run(self, deeds: list[Any], which: int) -> None:
        self.run([self.command(*deed) for deed in deeds], which)

    def run(self, commands: list[Command], which: int = 0) -> list[Any]:
        if not commands:
            return []
        self.steps += len(commands)
        try:
            replies = self.pair.execute(commands, which)
        except AssertionError as error:
            lines = [f"{self._moment()}  {told(command)}" for command in commands]
            raise AssertionError("\n".join(["after this history:", *self.story, *lines, str(error)])) from None
        for number, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            self.story.append(f"{self._moment() if not number else ' ' * 12}  {told(command)} → {shown(reply)}")
            self._learn(command, reply)
        return replies

    def _learn(self, command: Command, reply: Any) -> None:
        if isinstance(command, Admit) and not isinstance(reply, IdConflict | AttemptOver):
            self.asks[command.id] = command
            if isinstance(reply, Grant):
                self.past.append((command.id, reply))
                self.at[command.id], self.fence[command.id] = reply.at, reply.fence
            if isinstance(reply, Wait) and command.waits:
                self.standing[command.id] = command
            else:
                self.standing.pop(command.id, None)
        elif isinstance(command, Stamp) and command.plan is not None and not command.plan.lease:
            if isinstance(reply, Wait):
                self.at[command.id] = reply.at if self.promises else reply.now
            elif isinstance(reply, Ended) and reply.at:
                self.at[command.id] = reply.at
        elif isinstance(command, Settle) and isinstance(reply, Ended) and reply.at and command.actual is None:
            self.confirmed.setdefault(command.id, reply.at)

    def _moment(self) -> str:
        return f"{(self.pair.clock() - START) / SECOND:12.6f}"

    def drain(self, rounds: int = 40) -> list[str]:
        """Everybody who stands is served, and ends at once. Returns who went, in that order."""
        gone: list[str] = []
        for _ in range(rounds):
            waiting = list(self.standing.values())
            if not waiting:
                break
            replies = self.run([*waiting])
            granted = [ask for ask, reply in zip(waiting, replies, strict=True) if isinstance(reply, Grant)]
            gone += [ask.id for ask in granted]
            self.run([self._settle(ask, "settle", "ok", 0) for ask in granted])
            self.pair.clock.advance(microseconds=700_000)
        return gone


# --- for people -------------------------------------------------------------------------------------------------------


def told(command: Command) -> str:
    """A command in words."""
    name = type(command).__name__
    details: list[str] = []
    if isinstance(command, Admit):
        details += [command.id, asked(command.plan)]
        told_of = ("session", "holder", "attempt")
        details += [f"{what}={getattr(command, what)}" for what in told_of if getattr(command, what)]
        details += [what for what in ("waits", "remembered") if getattr(command, what)]
    elif isinstance(command, Renew):
        details += [
            command.session,
            f"leases={[lease[1] for lease in command.leases]}",
            f"tickets={list(command.tickets)}",
        ]
    else:
        for what in (
            "id",
            "attempt",
            "answered",
            "fence",
            "plan",
            "at",
            "outcome",
            "retry_after",
            "actual",
            "confirmed",
            "member",
            "value",
            "length",
            "limit",
            "ago",
        ):
            if hasattr(command, what):
                value = getattr(command, what)
                details.append(f"{what}={asked(value) if what == 'plan' and value else shown(value)}")
    return f"{name}({', '.join(details)})"  # fmt: skip


def asked(plan: Any) -> str:
    fingerprint, rank, costs, key = plan.ref
    parts = [f"{amount:g} {unit}" for unit, amount in costs] + [f"{by}={value}" for by, value in key]
    if plan.policy.priorities:
        parts.append(list(plan.policy.priorities)[rank])
    return f"<{', '.join(parts)}, configuration {fingerprint[:4]}>"


def shown(value: Any) -> str:
    """A reply in words: moments are seconds since the history began."""
    if isinstance(value, int) and value > START // 2:
        return "never" if value >= 2**53 else f"@{(value - START) / SECOND:g}"
    if isinstance(value, tuple | list):
        return f"({', '.join(shown(part) for part in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(part)}' for key, part in value.items())}}}"
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    if is_dataclass(value):
        parts = [f"{field.name}={shown(getattr(value, field.name))}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    return repr(value)
