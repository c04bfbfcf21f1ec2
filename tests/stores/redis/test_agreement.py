"""The script on a real server decides as the pure core does, on generated histories under a clock that the test moves.

The same commands go to `memory://`, which runs `Command.apply` itself, and to the script; every reply, every wake and what
can be seen of the state must be the same. A difference is made as small as it gets and told as a history.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Window
from headgate.errors import KindChanged
from headgate.kernel.commands import Admit, Cancel, Command, Pause, Peek, Release, Renew, Reset, Settle, Stand
from headgate.kernel.model import SECOND, Grant
from headgate.kernel.plan import Plan, Policy
from headgate.stores.memory import MemoryStore
from headgate.stores.redis import RedisStore
from headgate.stores.redis.script import channel, tag
from headgate.stores.redis.wire import wakes
from headgate.testing import FakeClock
from tests.support.generated import generated
from tests.support.histories import (
    CROWD,
    DEEDS,
    FAMILIES,
    LOSING,
    PASSED,
    History,
    plain,
    shown,
    told,
    usual_deed,
)
from tests.support.servers import BINARIES, NoServer, Server, in_ci
from tests.support.stores import KnownByProcesses


class Woken(MemoryStore):
    """A store in memory that notes whom it woke: session → (ticket, delay), in order."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.woken: dict[str, list[Any]] = {}

    def _wake(self, records: Any) -> None:
        for wake in records.wakes:
            self.woken.setdefault(wake.session, []).append((wake.ticket, wake.delay))
        records.wakes.clear()

    def heard(self) -> dict[str, list[Any]]:
        woken, self.woken = self.woken, {}
        return woken


def differ(what: str, core: str, script: str) -> None:
    raise AssertionError(f"{what}:\n  the core:   {core}\n  the script: {script}")


class Pair:
    """The same commands on the core and on the script, and all that is published heard."""

    def __init__(self, client: Any, hears: Any, url: str) -> None:
        client.flushall()
        self.client = client
        self.hears = hears
        self.clock = FakeClock()
        self.core = Woken(self.clock)
        # A busy machine may take its time: it is not what is tested here.
        self.processes = [RedisStore(f"{url}?timeout=10s", clock=self.clock) for _ in range(3)]
        self.known = KnownByProcesses(self.core)
        self.heard()  # what an example that failed has left

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self.processes:
            store.close()

    def listen(self, ticket: str) -> None:
        """Everything is heard here."""

    def execute(self, commands: list[Command], which: int = 0) -> list[Any]:
        store, gate = self.processes[which], commands[0].gate
        known = store._requests
        self.known.compare(gate, known.seen.get(gate, 0), known.told.get(gate, store.session))
        expected = self.core.execute(commands)
        got = store.execute(commands)
        self.known.learn(gate, known.told.get(gate, ""))
        for number, (command, mine, theirs) in enumerate(zip(commands, expected, got, strict=True), 1):
            if plain(mine) != plain(theirs):
                differ(f"command {number} of the last batch, {told(command)}", shown(mine), shown(theirs))
        woken, heard = self.core.heard(), self.heard()
        if woken != heard:
            differ("whom the last batch wakes", str(woken), str(heard))
        return expected

    def heard(self) -> dict[str, list[Any]]:
        """What the script has published so far: all of it comes before the answer to a question."""
        self.hears.ping("so far")
        woken: dict[str, list[Any]] = {}
        while True:
            message = self.hears.get_message(timeout=60)
            assert message is not None, "the server did not answer within 10 s"
            if message["type"] == "pong":
                return woken
            session = message["channel"].decode().removeprefix(channel(""))
            woken.setdefault(session, []).extend(wakes(message["data"]))

    def lose(self, gate: str) -> None:
        """A server that comes back without its data; the processes remember how far it had come."""
        self.core._records(gate).__init__(gate)  # type: ignore[misc]
        self.client.flushall()


@pytest.fixture(scope="module", params=[name for name, find in BINARIES.items() if find()] or [None])
def pair(request: pytest.FixtureRequest) -> Iterator[Callable[[], Pair]]:
    """Makes pairs, one at a time, on a server of their own: Valkey, and Redis where it is installed."""
    try:
        server = Server(kind=request.param)
    except NoServer as missing:
        if in_ci():
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    with server, redis.Redis(port=server.port) as client, client.pubsub() as hears:
        hears.psubscribe(channel("*"))
        hears.get_message(timeout=60)
        yield lambda: Pair(client, hears, server.url)


#: Histories of each gate: together they have 10,000 steps and more.
EXAMPLES = 100

BATCHES = st.lists(
    st.tuples(PASSED, st.lists(st.one_of(DEEDS, *LOSING), min_size=1, max_size=4)), min_size=1, max_size=24
)


def steps_of(pair: Pair, family: str, crowd: list[Any], batches: list[Any]) -> int:
    """One history, a look at all that can be seen at its end, and everybody served. Returns the number of steps."""
    history = History(pair, FAMILIES[family])
    history.execute(crowd)
    for passed, deeds in batches:
        pair.clock.advance(microseconds=passed)
        history.execute(deeds)
    history.execute([("look", None), *(("look", (version, 0, key, 0)) for version in range(2) for key in range(3))])
    history.drain()
    history.execute([("look", None)])
    return history.steps


def agree(pair: Callable[[], Pair], family: str, examples: int) -> int:
    """So many histories. Returns the number of steps in all."""
    steps = 0

    @generated(examples)
    @given(CROWD, BATCHES)
    def same(crowd: list[Any], batches: list[Any]) -> None:
        nonlocal steps
        with pair() as stores:
            steps += steps_of(stores, family, crowd, batches)

    same()
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_the_script_decides_as_the_core_does(pair: Callable[[], Pair], family: str) -> None:
    assert agree(pair, family, EXAMPLES) * len(FAMILIES) >= 10_000


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_the_script_decides_as_the_core_does_for_long(pair: Callable[[], Pair], family: str) -> None:
    assert agree(pair, family, 20_000) >= 200_000


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_history_is_the_same_and_what_runs_off_is_forgotten(pair: Callable[[], Pair], family: str) -> None:
    numbers = random.Random(11)
    with pair() as stores:
        history = History(stores, FAMILIES[family])
        for _ in range(250):
            deeds = [usual_deed(numbers) for _ in range(numbers.randrange(1, 5))]
            stores.clock.advance(microseconds=numbers.choice([0, 1000, SECOND // 3, SECOND]))
            history.execute(deeds)
        history.drain()
        stores.clock.advance("48h")
        for _ in range(10):
            history.run([Pause(family, 0) for _ in range(60)])
        history.execute([("look", None)])
        left = {key.decode().partition("}:")[2].partition("/")[0] for key in stores.client.keys(f"{tag(family)}*")}
        assert not left & {"windows", "promised", "leases", "permits", "tickets", "lane", "ready", "parked", "of"}


def test_a_batch_is_as_good_as_its_commands_one_by_one(pair: Callable[[], Pair]) -> None:
    numbers = random.Random(5)
    with pair() as stores:
        for policies in FAMILIES.values():
            history = History(stores, policies)
            for size in (64, 1, 200):
                history.execute([usual_deed(numbers) for _ in range(size)])
                stores.clock.advance(microseconds=SECOND)


CROWDED = {
    "a bucket": [Bucket(90, per="1s", burst=70, name="b")],
    "a window": [Window(130, per="2s", name="w")],
    "a bucket by key and a window": [Bucket(40, per="1s", by="org", name="b"), Window(200, per="3s", name="w")],
    "a window and leases": [Window(150, per="2s", name="w"), Concurrency(60, lease="3s", name="c")],
}


@pytest.mark.parametrize("limits", CROWDED.values(), ids=list(CROWDED))
def test_a_crowd_that_asks_alike_is_decided_and_remembered_as_one_by_one(
    pair: Callable[[], Pair], limits: list[Any]
) -> None:
    numbers, policy, ids = random.Random(7), Policy("alike", limits), count()

    def plan(cost: float, orgs: str) -> Plan:
        return policy.plan(cost, {"org": numbers.choice(orgs)} if policy.keys else None)

    def stand(plan: Plan, id: str) -> Stand:
        return Stand(plan, id, numbers.choice([None, "me"]), plan.lease, remembered=True)

    def crowd(size: int) -> list[Command]:
        cost, orgs = numbers.choice([1, 1, 0.1, 2]), numbers.choice(["a", "b", "aab"])
        asks = [stand(plan(cost, orgs), f"id-{next(ids)}") for _ in range(size)]
        if numbers.random() < 0.5:
            for ask in asks:
                ask.holder = None
            return list(asks)
        commands: list[Command] = list(asks)
        for _ in range(
            numbers.randrange(6)
        ):  # the same once more, its end, too much, or all taken away, among the others
            ask, much = numbers.choice(asks), plan(35, "a")
            ends: list[Command] = [Cancel(policy, ask.id), Release(policy, ask.id, "ok"), Reset("alike")]
            other = [*ends, stand(ask.plan, ask.id), Admit(much, f"id-{next(ids)}", None, much.lease)]
            commands.insert(numbers.randrange(size), numbers.choices(other, [2, 2, 1, 2, 4])[0])
        return commands

    with pair() as stores:
        for _ in range(60):
            stores.clock.advance(microseconds=numbers.choice([0, 1000, SECOND // 3, 2 * SECOND]))
            commands = crowd(numbers.choice([2, 7, 40, 120]))
            stores.execute(commands)
            again = [command for command in commands if isinstance(command, Stand)]
            stores.execute([*again, Peek(policy, leases=True)])


@pytest.mark.parametrize("remembered", [False, True], ids=["", "on-record"])
def test_who_waits_under_the_id_of_a_lease_takes_its_place_and_no_second_slot(
    pair: Callable[[], Pair], remembered: bool
) -> None:
    policy = Policy("twice", [Concurrency(2, lease="1m", name="c")])
    plan = policy.plan()

    def stand(id: str, remembered: bool = remembered) -> Stand:
        return Stand(plan, id, None, plan.lease, waits=True, session="s", remembered=remembered)

    with pair() as stores:
        _, second = stores.execute([stand("a", remembered=False), stand("b", remembered=False)])
        stores.execute([stand("a"), stand("c")])
        stores.execute([Settle(plan, second[0], "b", "ok", False)])
        assert stores.core.execute([Peek(policy)])[0].waiting == 2
        taken = stores.execute([stand("c"), stand("a"), Peek(policy, leases=True)])
        assert [isinstance(reply, Grant) for reply in taken] == [True, True, False]


def test_another_kind_under_an_old_name_is_the_same_error(pair: Callable[[], Pair]) -> None:
    before = Policy("kinds", [Window(2, per="10s", name="w")])
    after = Policy("kinds", [Bucket(2, per="10s", name="w")])
    with pair() as stores:
        for policies in ([before, after], [after, before]):
            history = History(stores, policies)
            for cost in (0, 0, 0, 3):
                history.execute([("admit", (version, cost, 0, 0)) for version in (0, 1)])
                history.execute([("known", 1, (1, cost, 0, 0), False), ("settle", 0, "unsent", 0)])
            history.execute([("reset", 0), ("admit", (1, 0, 0, 0)), ("reset", None)])


def test_a_difference_is_told_as_a_short_history(pair: Callable[[], Pair]) -> None:
    def differing(batches: list[Any]) -> None:
        with pair() as stores:
            history = History(stores, FAMILIES["rates"])
            stores.core.execute([Pause("rates", 5 * SECOND)])  # which nobody tells the script
            for passed, deeds in batches:
                stores.clock.advance(microseconds=passed)
                history.execute(deeds)

    with pytest.raises(AssertionError) as caught:
        settings(generated(200), database=None, print_blob=False)(given(BATCHES)(differing))()
    story = str(caught.value).splitlines()
    assert story[0] == "after this history:"
    assert len(story) == 5, story  # that, what happened, where they differ, and both answers
    assert any("the core:" in line for line in story)
    assert any("the script:" in line for line in story)


def test_a_look_at_what_can_never_fit_is_answered_at_once(pair: Callable[[], Pair]) -> None:
    with pair() as stores:
        history = History(stores, FAMILIES["places"])
        history.execute([("stand", (0, 0, 0, 0), 0), ("look", (0, 3, 0, 0))])
        assert "Refusal" in history.story[-1]


def test_a_ticket_that_becomes_another_kind_leaves_the_line_as_in_the_core(pair: Callable[[], Pair]) -> None:
    slots = Concurrency(1, lease="1m", name="c")
    old = Policy("turns", [Window(9, per="10s", name="x"), slots])
    new = Policy("turns", [Bucket(9, per="10s", name="x"), slots])

    def stand(policy: Policy, id: str) -> Stand:
        plan = policy.plan()
        return Stand(plan, id, None, plan.lease, waits=True, session=id)

    with pair() as stores:
        [held] = stores.execute([stand(old, "held")])
        stores.execute([Reset("turns", "x"), stand(old, "a"), stand(new, "b"), stand(old, "c")])
        stores.execute([Settle(old.plan(), held.at, "held", "error")])
        [taken, _, refused] = stores.execute([stand(old, "a"), stand(old, "c"), stand(new, "d")])
        assert isinstance(taken, Grant)
        assert isinstance(refused, KindChanged)
        stores.execute([Settle(old.plan(), taken.at, "a", "error")])
        gone, taken, _ = stores.execute([stand(new, "b"), stand(old, "c"), Peek(old, waiters=True)])
        assert isinstance(gone, KindChanged)
        assert isinstance(taken, Grant)


def test_a_dead_crowd_leaves_the_line_as_in_the_core_so_many_at_a_time(pair: Callable[[], Pair]) -> None:
    policy = Policy("crowd", [Concurrency(1, lease="1m", name="c")])
    plan = policy.plan()

    def stand(id: str, session: str) -> Stand:
        return Stand(plan, id, None, plan.lease, waits=True, session=session)

    with pair() as stores:
        [held] = stores.execute([stand("held", "holder")])
        for name, size in (("dead", 700), ("gone", 600), ("alive", 2)):
            stores.execute([stand(f"{name}-{number}", name) for number in range(size)])
        stores.clock.advance("6s")
        stores.execute([Renew("crowd", (), "alive", ("alive-0",))])
        stores.clock.advance("5s")
        left = []
        # There is room from the first on, and none of the dead is called.
        for command in (Settle(plan, held.at, "held", "ok"), Admit(plan, "new", None, plan.lease), Renew("crowd")):
            stores.execute([command, Peek(policy, waiters=True)])
            left.append(len(stores.core._gates["crowd"].tickets))
        assert left == [1302 - 512, 1302 - 1024, 2]
        stores.execute([stand("alive-0", "alive"), stand("alive-1", "alive"), Peek(policy)])


@pytest.mark.parametrize(
    "limit",
    [
        Bucket(1000, per="1m", burst=60, slack=0, name="r"),
        Window(100, per="6s", slack=0, name="r"),
    ],
    ids=["bucket", "window"],
)
def test_thousands_of_promises_lie_where_the_core_puts_them(pair: Callable[[], Pair], limit: Any) -> None:
    """Mixed costs, cancellations here and there, and more promises than one decision looks at."""
    policy, numbers, ids = Policy("many", [limit], waiting="promise"), random.Random(5), count()

    def asked() -> Stand:
        return Stand(policy.plan(numbers.randrange(1, 200) / 4), f"p{next(ids)}", remembered=True)

    with pair() as stores:
        for _ in range(30):
            stores.execute([asked() for _ in range(100)])
        for cancelled in (2990, 2500, 1200, 30, 3, 2999):
            stores.execute([Cancel(policy, f"p{cancelled}", answered=True), *[asked() for _ in range(6)]])
            stores.clock.advance("700ms")
        stores.execute([Release(policy, "p0", "unsent"), Peek(policy), *[asked() for _ in range(20)]])
