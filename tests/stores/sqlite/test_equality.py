"""What a SQLite file decides and holds is what the dicts in memory decide and hold, on generated histories.

Two stores have the same file open and take turns, and now and then one is closed: so what they keep in mind from one
transaction to the next is put to the test as well.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.kernel.commands import Command, Pause, Stand
from headgate.kernel.model import SECOND
from headgate.kernel.records import DictRecords
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.stores.sqlite import permits as sqlite_permits
from headgate.stores.sqlite import transactions as sqlite_transactions
from headgate.stores.sqlite.permits import Run
from headgate.testing import FakeClock
from tests.support.generated import generated
from tests.support.histories import DEEDS, FAMILIES, LOSING, PASSED, History, plain, some_ask, usual_deed
from tests.support.stores import KnownByProcesses


class Both:
    """The same commands on a store in memory and on two that share a file."""

    def __init__(self, folder: str) -> None:
        self.clock = FakeClock()
        self.path = str(Path(folder, "gates.db"))
        self.memory = MemoryStore(clock=self.clock)
        self.files = [SqliteStore(self.path, clock=self.clock) for _ in range(2)]
        self.told: dict[str, list[Any]] = {"memory": [], "file": []}
        self.known = KnownByProcesses(self.memory)

    def listen(self, ticket: str) -> None:
        self.memory.listen(ticket, lambda delay: self.told["memory"].append((ticket, delay)))
        for store in self.files:
            store._listeners.add(ticket, lambda delay: self.told["file"].append((ticket, delay)))

    def execute(self, commands: list[Command], which: int = 0) -> list[Any]:
        before = None
        if not any(command.writes for command in commands):
            before = deepcopy(self.memory._gates)  # a look tidies up in memory, and a file does not keep that
        store = self.files[which % 2]
        for gate in {command.gate for command in commands}:
            self.known.compare(gate, store._seen.get(gate, 0), store._told.get(gate, store.session))
        replies = self.memory.execute(commands)
        if before is not None:
            self.memory._gates = before
        # The file's replies first: where they differ, pytest shows them so.
        assert plain(self.in_turn(commands, which % 2)) == plain(replies)
        for gate in {command.gate for command in commands}:
            self.known.learn(gate, store._told.get(gate, ""))
        return replies

    def lose(self, gate: str) -> None:
        self.memory._records(gate).__init__(gate)  # type: ignore[misc]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM heads WHERE gate = ?", (gate,))
            connection.execute("DELETE FROM members WHERE space LIKE ?1 || '/%'", (gate,))

    def in_turn(self, commands: list[Command], which: int) -> list[Any]:
        """One that is alone goes the short way, as far as there is one just then."""
        if len(commands) != 1 or not commands[0].writes:
            return self.files[which].execute(commands)
        reply = self.files[which].at_once(commands[0])
        return self.files[which].execute(commands) if reply is None else [reply]

    def close(self) -> None:
        for store in self.files:
            store.close()

    def check(self) -> None:
        assert self.in_file() == self.in_memory()
        assert self.told["file"] == self.told["memory"]

    def in_memory(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for gate, records in self.memory._gates.items():
            if records.head.seq or records.states:
                found[gate] = plain(records.head.stored())
            kinds = {"states": {"": records.states}, **records.kinds}
            for kind, spaces in kinds.items():
                for name, space in spaces.items():
                    scores = {member: score for score, member in space.scan()}
                    for member, value in space.items():
                        found[f"{gate}/{kind}/{name}", member] = (scores.get(member), plain(value))
        return found

    def in_file(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        counts: dict[str, int] = {}
        connection = sqlite3.connect(self.path)
        for gate, text in connection.execute("SELECT gate, value FROM heads"):
            head, states, *run = json.loads(text)
            found[gate] = plain(head)
            for state, (its_score, its_value) in states.items():
                found[f"{gate}/states/", state] = (its_score, plain(its_value))
            if run and run[0] is not None:
                found.update(unpacked(gate, run[0]))
        for space, member, score, value in connection.execute("SELECT * FROM members"):
            value = plain(json.loads(value)) if isinstance(value, str) else value
            if "/!" in space:
                sizes[space.replace("/!", "/#")] = value
            elif space.endswith("/runs/"):
                inside = unpacked(space.partition("/")[0], value)
                assert score == min(score for score, _ in inside.values())
                assert member >= max(id for _, id in inside)
                assert not inside.keys() & found.keys()
                found.update(inside)
            else:
                counts[space] = counts.get(space, 0) + 1
                found[space.replace("/#", "/"), member] = (score, value)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        # What the triggers keep is the number of the members themselves.
        assert {space: size for space, size in sizes.items() if size} == {
            space: count for space, count in counts.items() if "/#" in space
        }
        return found


def unpacked(gate: str, packed: Any) -> dict[Any, Any]:
    run = Run.unpacked(packed)
    return {(f"{gate}/permits/", id): (run.scores[id], plain(run.value(id))) for id in run.parts}


@contextmanager
def both() -> Iterator[Both]:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_transactions, "CONTENDED_FOR", 1)  # though the other one writes as well
        pair = Both(folder)
        try:
            yield pair
        finally:
            pair.close()


# --- records: any use of them -----------------------------------------------------------------------------------------

SPACES = [("windows", "w"), ("leases", "l"), ("leases", "m"), ("tickets", ""), ("lane", "0.0.x"), ("due", "")]
MEMBERS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
KEYED = st.sampled_from(["rpm", "rpm@live", "rpm|x", "rpm|y", "rpm|z", "org|x"])
SCORES = st.integers(0, 6) | st.sampled_from([0.5, 2.5])
VALUES = st.sampled_from([1, 2.5, "text", ("t", 1, (2.0, None)), (), True, 0])

STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(SPACES), MEMBERS, VALUES, SCORES),
    st.tuples(st.just("set"), st.sampled_from(SPACES), MEMBERS, VALUES),
    st.tuples(st.just("delete"), st.sampled_from(SPACES), MEMBERS),
    st.tuples(st.just("get"), st.sampled_from(SPACES), MEMBERS),
    st.tuples(st.just("first"), st.sampled_from(SPACES)),
    st.tuples(st.just("scan"), st.sampled_from(SPACES), st.integers(-1, 7)),
    st.tuples(st.just("prune"), st.sampled_from(SPACES), st.integers(0, 6)),
    st.tuples(st.just("size"), st.sampled_from([space for space in SPACES if space[0] in ("leases", "tickets")])),
    st.tuples(st.just("drop"), st.sampled_from(SPACES)),
    st.tuples(st.just("put state"), st.just(None), KEYED, VALUES, SCORES),
    st.tuples(st.just("set state"), st.just(None), KEYED, VALUES),
    st.tuples(st.just("delete state"), st.just(None), KEYED),
    st.tuples(st.just("scan states"), st.just(None)),
    st.tuples(st.just("first state"), st.just(None)),
)


#: Permits under ids that a guard numbers, which are packed, and under others; some of them confirmed or renewed.
PERMIT_IDS = st.sampled_from([*(f"{name}-{number:012d}" for name in "ab" for number in range(1, 7)), "c-7", "own"])
TIMES = st.integers(0, 5)
PERMITS = st.builds(
    lambda at, lasts, fence, leased, ended, worth, more: ("ref", at, at + lasts, fence, leased, ended, worth, *more),
    *(TIMES, TIMES, TIMES, st.booleans(), st.sampled_from([False, True, 2]), st.booleans()),
    st.sampled_from([(), (), (), (9,)]),
)
PERMIT_STEPS = st.one_of(
    st.tuples(st.just("put permit"), st.just(("permits", "")), PERMIT_IDS, PERMITS, st.sampled_from([0, 0, 0, 3])),
    st.tuples(st.just("set"), st.just(("permits", "")), PERMIT_IDS, PERMITS),
    st.tuples(st.sampled_from(["delete", "get"]), st.just(("permits", "")), PERMIT_IDS),
    st.tuples(st.just("first"), st.just(("permits", ""))),
    st.tuples(st.just("prune"), st.just(("permits", "")), st.integers(60, 70)),
    st.tuples(st.just("drop"), st.just(("permits", ""))),
)


class Use(Command):
    """Does these steps with the records, and tells what they gave."""

    __slots__ = ("steps",)

    def __init__(self, steps: list[Any]) -> None:
        self.gate = "used"
        self.steps = steps

    def apply(self, now: int, records: Any) -> Any:
        replies = []
        for step, where, *rest in self.steps:
            space = records.states if where is None else records.space(*where)
            if step == "put permit":
                member, value, late = rest
                replies.append((space.get(member), space.put(member, value, value[2] + 60 + late)))
            elif step.startswith("put"):
                member, value, score = rest
                replies.append(space.put(member, value, score))
            elif step.startswith("set"):
                space[rest[0]] = rest[1]
            elif step.startswith("delete"):
                replies.append(space.delete(*rest))
            elif step == "get":
                replies.append(space.get(*rest))
            elif step.startswith("first"):
                replies.append(space.first())
            elif step.startswith("scan"):
                replies.append([(pair, space.get(pair[1])) for pair in space.scan(*rest)])
            elif step == "prune":
                while (first := space.first()) is not None and first[0] <= rest[0]:
                    replies.append((first, space.get(first[1]), space.delete(first[1])))
            elif step == "size":
                replies.append(len(space))
            else:
                records.drop(*where)
        records.head.seq += 1
        records.head.now = now
        return replies


class Look(Use):
    """The same, and nothing of it may stay."""

    __slots__ = ()
    writes = False


@generated(150)
@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.lists(STEPS, max_size=12)), max_size=12))
def test_the_records_of_a_file_behave_like_dicts(history: list[tuple[int, bool, list[Any]]]) -> None:
    with both() as pair:
        for which, closing, steps in history:
            if closing:
                pair.files[which].close()
            pair.execute([Use(steps)], which)
        pair.check()


@pytest.mark.parametrize("longest", [2, 128])
def test_permits_that_are_packed_behave_like_dicts(longest: int) -> None:
    @generated(100)
    @given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.lists(PERMIT_STEPS, max_size=12)), max_size=12))
    def same(history: list[tuple[int, bool, list[Any]]]) -> None:
        with packed_up_to(longest), both() as pair:
            for which, closing, steps in history:
                if closing:
                    pair.files[which].close()
                pair.execute([Use(steps)], which)
                pair.check()

    same()


@pytest.mark.parametrize("seed", range(8))
def test_a_permit_is_found_in_whatever_order_the_numbers_came(seed: int) -> None:
    numbers = random.Random(seed)
    ids = [f"{name}-{number:012d}" for name in "ab" for number in range(40)]
    # Mostly in order, as those of a guard are that decides many at a time.
    ids.sort(key=lambda id: int(id[-12:]) + numbers.randrange(6))
    with packed_up_to(3), both() as pair:
        while ids:
            which, some = numbers.randrange(2), [ids.pop(0) for _ in range(min(len(ids), numbers.randrange(1, 5)))]
            put = [("put permit", ("permits", ""), id, ("ref", 1, 1, 1, False, False, False), 0) for id in some]
            pair.execute([Use(put)], which)
            if not numbers.randrange(3):
                pair.files[which].close()
        every = [f"{name}-{number:012d}" for name in "ab" for number in range(40)]
        numbers.shuffle(every)
        for ids in (every, every[:20]):
            for store in pair.files:
                store.close()
            pair.execute([Use([("get", ("permits", ""), id) for id in ids])])
            pair.execute([Use([("delete", ("permits", ""), id) for id in ids[:10]])])
            pair.check()


@contextmanager
def packed_up_to(longest: int) -> Iterator[None]:
    """Runs of at most so many permits, and of about as many signs as they have in the head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_permits, "_LONGEST", longest)
        patch.setattr(sqlite_permits, "_SHORT", 20 * longest)
        yield


@generated(60)
@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=12), st.booleans())
def test_a_look_sees_what_it_does_itself_and_leaves_nothing(before: list[Any], steps: list[Any], closing: bool) -> None:
    with both() as pair:
        pair.execute([Use(before)])
        if closing:
            pair.files[0].close()
        state = pair.in_file()
        copy = DictRecords("used")
        Use(before).apply(pair.clock(), copy)
        expected = Use(steps).apply(pair.clock(), copy)
        assert plain(pair.files[0].execute([Look(steps)])) == (plain(expected),)
        assert pair.in_file() == state
        pair.execute([Use([])])
        pair.check()


@pytest.mark.parametrize("size", [7, 8, 9, 100, 1500])
def test_a_long_order_is_walked_in_pieces(size: int) -> None:
    numbers = random.Random(size)
    scores = [numbers.randrange(size) for _ in range(size)]
    fill = [("put", ("due", ""), f"m{at}", None, score) for at, score in enumerate(scores)]
    with both() as pair:
        pair.execute([Use(fill)])
        for cold in (False, True):
            for since in (-1, 0, size // 2, size):
                if cold:
                    pair.files[0].close()
                pair.execute([Use([("scan", ("due", ""), since), ("first", ("due", ""))])])
        pair.files[0].close()
        moves = [("put", ("due", ""), f"m{at}", None, numbers.randrange(size)) for at in range(0, size, 3)]
        gone = [("delete", ("due", ""), f"m{at}") for at in range(0, size, 4)]
        pair.execute([Use([*moves, *gone, ("prune", ("due", ""), size // 3), ("scan", ("due", ""), size // 2)])])
        pair.check()


# --- whole histories --------------------------------------------------------------------------------------------------

BATCHES = st.lists(
    st.tuples(st.integers(0, 1), st.booleans(), PASSED, st.lists(st.one_of(DEEDS, *LOSING), min_size=1, max_size=4)),
    max_size=14,
)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_decides_as_memory_does(family: str) -> None:
    @generated(40)
    @given(BATCHES)
    def same(batches: list[Any]) -> None:
        with both() as pair:
            history = History(pair, FAMILIES[family])
            for which, closing, passed, deeds in batches:
                pair.clock.advance(microseconds=passed)
                if closing:
                    pair.files[which].close()
                history.execute(deeds, which)
            pair.check()

    same()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_history_is_the_same_and_idle_state_is_reclaimed(family: str) -> None:
    numbers = random.Random(7)
    with both() as pair:
        history = History(pair, FAMILIES[family])
        for _ in range(600):
            deeds = [usual_deed(numbers) for _ in range(numbers.randrange(1, 4))]
            pair.clock.advance(microseconds=numbers.choice([0, 1000, SECOND // 3, SECOND]))
            history.execute(deeds, numbers.randrange(2))
        pair.check()
        pair.clock.advance("48h")
        for _ in range(300):
            pair.execute([Pause(family, 0)], numbers.randrange(2))
        pair.check()
        left = {key[0] for key in pair.in_file() if isinstance(key, tuple)}
        assert not {space for space in left if space.split("/")[1] in ("windows", "leases", "permits")}


class GuardHistory(History):
    """As guards ask: every ask is remembered, under a name and a number; two of them take turns."""

    def _id(self) -> str:
        self.made += 1
        return f"guard{self.made // 5 % 2}-{self.made:012d}"

    def command(self, deed: str, *rest: Any) -> Command:
        known = len(self.asks)
        command = super().command("stand" if deed == "admit" else deed, *rest)
        if isinstance(command, Stand):
            command.remembered = True
            command.fresh = len(self.asks) > known
            command.waits = command.waits and not (command.fresh and deed == "admit")
        return command


@pytest.mark.parametrize("longest", [3, 128])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_guards_ask_is_the_same_and_is_forgotten_at_the_same_time(family: str, longest: int) -> None:
    numbers = random.Random(longest)
    with packed_up_to(longest), both() as pair:
        history = GuardHistory(pair, FAMILIES[family])
        for turn in range(600):
            deeds = [usual_deed(numbers) for _ in range(numbers.randrange(1, 4))]
            pair.clock.advance(microseconds=numbers.choice([0, 1000, SECOND // 3, SECOND]))
            history.execute(deeds, numbers.randrange(2))
            if not turn % 100:
                pair.check()
        pair.check()
        assert any(key[0].endswith("/permits/") for key in pair.in_file() if isinstance(key, tuple))
        pair.clock.advance("48h")
        for _ in range(300):
            pair.execute([Pause(family, 0)], numbers.randrange(2))
        pair.check()
        assert not [key for key in pair.in_file() if isinstance(key, tuple) and key[0].endswith("/permits/")]


def test_many_gates_in_one_batch_are_the_same() -> None:
    numbers = random.Random(3)
    with both() as pair:
        histories = [History(pair, policies) for policies in FAMILIES.values()]
        for _ in range(120):
            commands = []
            for history in numbers.sample(histories, 3):
                commands += [history.command("admit", some_ask(numbers)), history.command("look", (0, 0, 0, 0))]
            pair.clock.advance(microseconds=numbers.randrange(SECOND))
            pair.execute(commands, numbers.randrange(2))
        pair.check()
