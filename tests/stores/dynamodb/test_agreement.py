"""The store on a real server decides as the pure core does in memory, on generated histories, however its items are cut.

The same commands go to `memory://` and to DynamoDB; every reply must be the same. Values of keys lie inline or in items of
their own, and two processes take turns. A difference is made as small as it gets and told as a history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.kernel.commands import Admit, Command, Peek
from headgate.kernel.commands.peek import KEYS
from headgate.kernel.model import Refusal, Snapshot, Wait
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.stores.dynamodb.batch import values_of
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.dynamo_servers import CREDENTIALS, Server, client, make_table, started
from tests.support.generated import generated
from tests.support.histories import DEEDS, FAMILIES, LOSING, PASSED, History, plain, shown, told
from tests.support.stores import KnownByProcesses

EXAMPLES = int(os.environ.get("EX", "4"))

TABLE = "agreement"


def writes_of(process: DynamoStore) -> int:
    return process.table.requests["put_item"] + process.table.requests["transact_write_items"]


def left_nothing(command: Command, reply: Any) -> bool:
    """Whether a command changed nothing, by what it was answered."""
    refused = isinstance(command, Admit) and not command.waits and isinstance(reply, Wait | Refusal | Exception)
    return refused or not command.writes


def of_all_keys(command: Command) -> Command:
    """A look at the fullest keys of a limit as one at all of them; any other command as it is."""
    if not isinstance(command, Peek):
        return command
    look = copy(command)
    look.top = KEYS
    return look


def of_known_keys(command: Command, mine: Any, theirs: Any, named: set[str]) -> Any:
    """The core's reply with the keys that DynamoDB can list: a table cannot be asked for the items of a gate.

    Those that are `named` must be there. Others may be, where the process happens to have read them.
    """
    if not isinstance(command, Peek) or not isinstance(mine, Snapshot) or not isinstance(theirs, Snapshot):
        return mine
    known = named | {row.key for row in theirs.keys}
    return replace(mine, keys=tuple(row for row in mine.keys if row.key in known)[: command.top])


class Pair:
    """The same commands in memory and on DynamoDB, where processes take turns."""

    def __init__(self, server: Server, processes: list[DynamoStore], loses: bool = False) -> None:
        self.clock = FakeClock()
        self.core = MemoryStore(clock=self.clock)
        self.known = KnownByProcesses(self.core)
        #: The history says whose turn it is, and when state is lost.
        self.loses = loses
        self.processes = processes
        self.client = client(server.endpoint)
        self._turn = 0
        self._empty()
        for process in processes:
            process.begin_in_child()  # another process, that knows of nothing
            process._clock = self.clock

    def _empty(self) -> None:
        for item in self.client.scan(TableName=TABLE)["Items"]:
            self.client.delete_item(TableName=TABLE, Key={"counter_id": item["counter_id"]})

    def _named(self, gate: str) -> set[str]:
        """The values of keys that the gate's own item names: those inline, and those under which leases are held."""
        name = dynamodb_records.item_name(gate)
        item = self.client.get_item(TableName=TABLE, Key={"counter_id": {"S": name}}, ConsistentRead=True).get("Item")
        if item is None:
            return set()
        records = dynamodb_records.gate_records(gate, dynamodb_records.read_item(item, name)[1])
        return records.inline.keys() | records.held

    def listen(self, ticket: str) -> None:
        """Nobody waits here."""

    def execute(self, commands: list[Command], which: int = 0) -> list[Any]:
        self._turn += 1
        gate = commands[0].gate
        process = self.processes[which % len(self.processes) if self.loses else self._turn % len(self.processes)]
        known = process._writer(gate)
        self.known.compare(gate, known.seen, known.told)
        before = deepcopy(self.core._gates.get(gate))
        named = self._named(gate).union(*map(values_of, commands))
        replies = self.core.execute([of_all_keys(command) for command in commands])
        written = writes_of(process)
        got = process.execute(commands)
        expected = [of_known_keys(*row, named) for row in zip(commands, replies, got, strict=True)]
        self.known.learn(gate, known.told)
        if writes_of(process) == written and all(map(left_nothing, commands, expected)):
            # Who only looks or is refused tidies up for itself alone.
            self.core._gates.pop(gate, None)
            if before is not None:
                self.core._gates[gate] = before
        for number, (command, mine, theirs) in enumerate(zip(commands, expected, got, strict=True), 1):
            differs = f"command {number} of the last batch, {told(command)}"
            assert plain(mine) == plain(theirs), f"{differs}:\n  memory:   {shown(mine)}\n  DynamoDB: {shown(theirs)}"
        return expected

    def lose(self, gate: str) -> None:
        self.core._records(gate).__init__(gate)  # type: ignore[misc]
        self._empty()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = started()
    make_table(server.endpoint, TABLE)
    yield server
    server.stop()


@pytest.fixture
def opened(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], DynamoStore]]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    stores = []

    def open() -> DynamoStore:
        stores.append(DynamoStore(TABLE, endpoint=server.endpoint, timeout=10, clock=FakeClock()))
        return stores[-1]

    yield open
    for store in stores:
        store.close()


def run(pair: Pair, family: str, batches: list[Any]) -> int:
    """One history, a look at all that can be seen at its end, and everybody served. Returns the number of steps."""
    history = History(pair, FAMILIES[family])
    for passed, deeds in batches:
        pair.clock.advance(microseconds=passed)
        history.execute(deeds)
    history.execute([("look", None), *(("look", (version, 0, key, 0)) for version in range(2) for key in range(3))])
    history.drain()
    history.execute([("look", None)])
    return history.steps


def batches(*deeds: Any) -> Any:
    return st.lists(st.tuples(PASSED, st.lists(st.one_of(*deeds), min_size=1, max_size=4)), min_size=1, max_size=24)


@pytest.mark.parametrize("family", FAMILIES)
def test_processes_decide_as_the_core_does_also_when_state_is_lost(
    server: Server, opened: Callable[[], DynamoStore], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [opened(), opened()]

    @generated(EXAMPLES)
    @given(batches(DEEDS, *LOSING), st.sampled_from([0, 300, 4096]))
    def same(history: list[Any], inline: int) -> None:
        monkeypatch.setattr(dynamodb_records, "INLINE", inline)
        run(Pair(server, processes, loses=True), family, history)

    same()


@pytest.mark.parametrize("family", FAMILIES)
def test_processes_that_take_turns_decide_as_the_core_does(
    server: Server, opened: Callable[[], DynamoStore], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = [opened(), opened()]

    @generated(EXAMPLES)
    @given(batches(DEEDS), st.sampled_from([0, 300, 4096]))
    def same(history: list[Any], inline: int) -> None:
        monkeypatch.setattr(dynamodb_records, "INLINE", inline)
        run(Pair(server, processes), family, history)

    same()
