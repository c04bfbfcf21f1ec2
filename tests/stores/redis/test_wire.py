"""What goes to the script and what comes back: on a real server, every reply is what the pure core answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import redis

from headgate import Aimd, Bucket, Concurrency, Probing, Quota, Window
from headgate.errors import AttemptOver, IdConflict, KindChanged, StoreFormatError
from headgate.kernel.commands import (
    Admit,
    Cancel,
    Command,
    Configure,
    Pause,
    Peek,
    Release,
    Renew,
    Reset,
    Settle,
    Stand,
)
from headgate.kernel.model import SECOND, Grant, Refusal, Wait
from headgate.kernel.plan import Policy
from headgate.kernel.records import DictRecords
from headgate.stores.base import run
from headgate.stores.redis import script as redis_script
from headgate.stores.redis import wire as redis_wire
from headgate.testing.clock import START
from tests.support.servers import NoServer, Server, in_ci

T = START


@pytest.fixture(scope="module", params=["valkey", "redis"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    try:
        server = Server(kind=request.param).start()
    except NoServer as error:
        # Valkey comes with a wheel; Debian's server is tested where it is there.
        (pytest.fail if in_ci() and request.param == "valkey" else pytest.skip)(str(error))
    connection = redis.Redis(port=server.port, protocol=2)
    assert connection.script_load(redis_script.text()) == redis_script.digest()
    assert connection.function_load(redis_script.library()) == redis_script.function().encode()
    yield connection
    connection.close()
    server.stop()


@pytest.fixture(params=["script", "library"])
def call(request: pytest.FixtureRequest, client: Any) -> Callable[..., Any]:
    """The two ways to have it decided: by EVALSHA, which every server knows, and by FCALL, which is made ready once."""
    if request.param == "script":
        return partial(client.evalsha, redis_script.digest(), 1)
    return partial(client.fcall, redis_script.function(), 1)


class Twins:
    """A gate on the server and the same one in the pure core: both are told the same, and must answer the same."""

    def __init__(self, call: Callable[..., Any], gate: str) -> None:
        self.call = call
        self.gate = gate
        self.core = DictRecords(gate)
        self.calendars: list[tuple[str, int]] = []

    def ask_server(self, now: int, commands: Sequence[Command], seen: int = 0, known: Any = ()) -> redis_wire.Decoded:
        arguments = redis_wire.encode(self.gate, commands, seen=seen, now=now, calendars=known)
        tag = redis_script.tag(self.gate)
        return redis_wire.decode(commands, self.call(tag, *arguments))

    def both(self, now: int, *commands: Command, seen: int = 0) -> list[Any]:
        """One batch. Returns the replies, which were the same."""
        self.core.seen = seen
        wanted = [run(command, now, self.core) for command in commands]
        known: tuple[Any, ...] = ()
        while True:
            try:
                answer = self.ask_server(now, commands, seen, known)
                break
            except redis_wire.NeedCalendar as need:
                known += need.calendars
                self.calendars += need.calendars
        assert len(set(known)) == len(known), "what was sent is not asked for again"
        self.core.wakes.clear()
        assert list(map(shown, answer.replies)) == list(map(shown, wanted))
        assert answer.seq == self.core.head.seq
        return answer.replies

    def one(self, now: int, command: Command, seen: int = 0) -> Any:
        return self.both(now, command, seen=seen)[0]


def shown(reply: Any) -> Any:
    return (type(reply), str(reply), vars(reply)) if isinstance(reply, Exception) else reply


@pytest.fixture
def twins(client: Any, call: Any) -> Any:
    client.flushdb()
    return lambda policy: Twins(call, policy.name)


def asks(policy: Policy, count: int, begin: int = 0, **more: Any) -> list[Stand]:
    plan = policy.plan(**more)
    return [Stand(plan, f"id-{number}", "me", plan.lease, remembered=True) for number in range(begin, begin + count)]


# --- the limits -------------------------------------------------------------------------------------------------------

RATES = {
    "bucket": Bucket(5, per="1s", name="r"),
    "bucket with a burst": Bucket(2.5, per="1s", burst=7, slack="200ms", name="r"),
    "window": Window(5, per="1s", name="r"),
    "window without slack": Window(5, per="1s", slack=0, name="r"),
    "quota": Quota(5, per="minute", name="r"),
}


@pytest.mark.parametrize("limit", RATES.values(), ids=list(RATES))
def test_a_rate_is_refused_just_before_its_moment_and_granted_at_it(twins: Any, limit: Any) -> None:
    policy = Policy("rate", [limit])
    gate, now = twins(policy), T
    for begin in range(0, 40, 8):
        replies = gate.both(now, *asks(policy, 8, begin))
        waits = [reply for reply in replies if isinstance(reply, Wait)]
        assert waits
        gate.both(waits[0].at - 1, *asks(policy, 1, begin + 100))
        assert isinstance(gate.one(waits[0].at, *asks(policy, 1, begin + 200)), Grant)
        now = waits[0].at + SECOND // 3


@pytest.mark.parametrize("limit", RATES.values(), ids=list(RATES))
def test_a_promise_lies_where_the_core_puts_it_and_is_given_back(twins: Any, limit: Any) -> None:
    policy = Policy("promise", [limit, Bucket(40, per="10s", name="other", unit="pu")], waiting="promise")
    gate = twins(policy)
    costs = [{"requests": 1, "pu": pu} for pu in (0.5, 3, 2, 7.25)]
    for number in range(24):
        now = T + number * SECOND // 7
        gate.both(now, *[Stand(policy.plan(costs[at]), f"{number}-{at}", remembered=True) for at in range(4)])
        gate.both(now, Cancel(policy, f"{number}-1"), Peek(policy, plan=policy.plan(costs[2])))
    late = Stand(policy.plan(costs[0]), "late", remembered=True, latest=1000)
    assert isinstance(gate.one(T + 4 * SECOND, late), Refusal)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia"])
@pytest.mark.parametrize("per", ["minute", "hour", "day", "week", "month", "year"])
def test_a_quota_ends_with_its_period_in_its_zone_also_where_clocks_are_changed(
    twins: Any, per: str, zone: str
) -> None:
    policy = Policy("quota", [Quota(3, per=per, zone=zone, name="q")])
    gate = twins(policy)
    for number, moment in enumerate(
        (
            datetime(2011, 12, 29, 23, 59, 59, 900_000, UTC),  # Samoa went without the next day
            datetime(2024, 2, 29, 12, tzinfo=UTC),
            datetime(2024, 3, 31, 0, 30, tzinfo=UTC),
            datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
            datetime(2024, 12, 31, 23, 59, 59, 950_000, UTC),
            datetime(2099, 6, 1, tzinfo=UTC),
        )
    ):
        now = int(moment.timestamp()) * SECOND + moment.microsecond
        gate.both(now, *asks(policy, 5, 10 * number), Peek(policy))
        gate.both(now + SECOND, Release(policy, f"id-{10 * number}", "unsent"), *asks(policy, 2, 10 * number + 6))
    assert zone != "UTC" or not gate.calendars


def test_a_call_that_needs_a_calendar_decides_nothing_until_it_has_it(twins: Any, client: Any) -> None:
    policy = Policy("quota", [Window(5, per="1m"), Quota(3, per="day", zone="Europe/Paris", name="q")])
    gate = twins(policy)
    with pytest.raises(redis_wire.NeedCalendar) as need:
        gate.ask_server(T, asks(policy, 2))
    assert client.keys() == []
    assert gate.ask_server(T, asks(policy, 2), known=need.value.calendars).replies == [
        Grant(T, 0, 1, False, 0),
        Grant(T, 0, 2, True, 0),
    ]
    assert len(gate.ask_server(T, asks(policy, 1, 2)).replies) == 1  # it stays with the gate


def test_slots_are_taken_ended_renewed_and_run_out(twins: Any) -> None:
    policy = Policy("slots", [Concurrency(3, lease="5s", name="all"), Concurrency(2, lease="4s", name="org", by="org")])
    gate = twins(policy)
    grants: dict[str, Any] = {}
    for number in range(30):
        now = T + number * SECOND // 2
        commands = [
            Stand(
                plan := policy.plan(key={"org": org}),
                f"{number}~org={org}",
                None,
                plan.lease,
                remembered=number % 2 == 0,
            )
            for org in "ab"
        ]
        for command, reply in zip(commands, gate.both(now, *commands), strict=True):
            if isinstance(reply, Grant):
                grants[command.id] = (command, reply)
        held = list(grants.items())[-4:]
        leases = tuple((c.plan, id, r.at, c.lease, r.fence, None) for id, (c, r) in held[:2])
        gate.both(now + 1, Renew("slots", leases), Peek(policy, leases=True))
        for id, (command, reply) in held[2:3]:
            gate.both(now + 2, Settle(command.plan, reply.at, id, None), Settle(command.plan, reply.at, id, "ok"))
            gate.both(now + 3, Release(policy, id, "error"), Release(policy, "nobody", "ok"))


@pytest.mark.parametrize("rule", [Aimd(start=6, minimum=2, increase_every=2), Probing(start=6, probe_every=1)])
def test_an_adaptive_limit_shrinks_once_per_congestion_and_grows_again(twins: Any, rule: Any) -> None:
    policy = Policy("adaptive", [Concurrency(9, adaptive=rule, name="c")])
    gate = twins(policy)
    for number, outcome in enumerate(["ok"] * 6 + ["rate_limited", "overloaded", "error", "unsent"] + ["ok"] * 8):
        now = T + number * SECOND
        commands = asks(policy, 8, 8 * number)
        granted = [(c, r) for c, r in zip(commands, gate.both(now, *commands), strict=True) if isinstance(r, Grant)]
        gate.both(now + 10, *[Settle(c.plan, r[0], c.id, outcome) for c, r in granted], Peek(policy))


def test_what_it_really_cost_is_settled_and_the_unsent_given_back(twins: Any) -> None:
    policy = Policy("costs", [Bucket(10, per="10s", name="b", unit="pu"), Window(20, per="10s", name="w", unit="pu")])
    gate = twins(policy)
    outcomes = ["ok", "unsent", None, "error", "rate_limited"]
    for number in range(40):
        now = T + number * SECOND // 4
        command = Stand(policy.plan({"pu": 2 + number % 3}), f"{number}", remembered=True)
        reply = gate.one(now, command)
        if isinstance(reply, Grant):
            actual = {"pu": [0.5, 2.0, 6.5][number % 3]} if number % 2 else None
            outcome = outcomes[number % 5]
            gate.both(
                now + 50_000,
                Settle(command.plan, reply.at, command.id, outcome, True, 0, actual, worth=reply.worth_confirming),
            )
        gate.both(now + 60_000, Peek(policy, plan=policy.plan({"pu": 1})))


def test_classes_have_their_share_and_are_told_what_can_never_fit(twins: Any) -> None:
    policy = Policy(
        "shares",
        [Window(10, per="1s", name="w"), Bucket(10, per="1s", name="b"), Concurrency(5, name="c")],
        priorities={"live": 1.0, "batch": 0.8, "idle": 0.5},
    )
    gate = twins(policy)
    for number, name in enumerate(["idle"] * 6 + ["batch"] * 5 + ["live"] * 4):
        gate.both(T + number, *asks(policy, 1, number, priority=name), Peek(policy, leases=True))
    reply = gate.one(T + SECOND, Stand(policy.plan(9, priority="batch"), "large"))
    assert "the share of priority 'batch'" in reply.reason
    assert "it allows at most 10 at once" in gate.one(T + SECOND, Stand(policy.plan(11), "larger")).reason


# --- changes, loss, errors --------------------------------------------------------------------------------------------


def test_overrides_pauses_and_resets_take_effect_at_once(twins: Any) -> None:
    policy = Policy(
        "live", [Window(4, per="1s", name="w"), Bucket(6, per="1s", name="b", by="org"), Concurrency(5, name="c")]
    )
    gate = twins(policy)
    acme, key = {"org": "acme"}, {"key": {"org": "acme"}}
    gate.both(T, *asks(policy, 6, **key))
    gate.both(T + 1, Configure("live", "w", 9), Configure("live", "b|acme", 2.5), *asks(policy, 4, 10, **key))
    gate.both(T + 2, Peek(policy, plan=policy.plan(key=acme), leases=True), Configure("live", "b|acme", None))
    gate.both(
        T + 3,
        Pause("live", SECOND, "maintenance"),
        *asks(policy, 1, 20, **key),
        Peek(policy, plan=policy.plan(key=acme)),
    )
    gate.both(T + 4, Pause("live", 0), Reset("live", "w"), *asks(policy, 3, 30, **key), Peek(policy, leases=True))
    gate.both(T + 5, Reset("live"), Release(policy, "id-0", "ok"), *asks(policy, 2, 40, **key), Peek(policy))
    command, reply = asks(policy, 1, 50, **key)[0], gate.one(T + 6, *asks(policy, 1, 50, **key))
    gate.both(
        T + 7, Settle(command.plan, reply.at, command.id, "rate_limited", True, SECOND), *asks(policy, 1, 51, **key)
    )


def test_an_override_outlives_an_idle_gate_and_everything_else_expires(twins: Any, client: Any) -> None:
    policy = Policy("idle", [Window(4, per="1s", name="w"), Concurrency(2, name="c")])
    gate = twins(policy)
    gate.both(T, *asks(policy, 3), Configure("idle", "w", 9))
    lasting = {key for key in client.scan_iter() if client.pttl(key) < 0}
    assert lasting == {b"hg:{idle}", b"hg:{idle}:overrides", b"hg:{idle}:overrides:z"}
    gate.both(T + 1, Configure("idle", "w", None))
    assert all(client.pttl(key) >= 7 * 86_400_000 for key in client.scan_iter())


def test_a_gate_is_kept_for_as_long_as_its_limits_remember(twins: Any, client: Any) -> None:
    for limit, days in (
        (Quota(9, per="year", name="q", by="org"), 737),
        (Window(9, per="30d", name="w", by="org"), 67),
    ):
        policy = Policy("kept", [limit])
        for _ in range(2):  # also when the server was emptied, and the script has seen the policy before
            client.flushdb()
            twins(policy).both(T, *asks(policy, 2, key={"org": "a" * 60}))
            assert {client.pttl(key) // 86_400_000 for key in client.scan_iter()} <= {days - 1, days}


def test_lost_state_is_noticed_and_rates_come_back_in_proportion(twins: Any, client: Any) -> None:
    policy = Policy(
        "loss",
        [Window(50, per="1s", name="w"), Bucket(90, per="3s", name="b"), Quota(9_000, name="q"), Concurrency(99)],
    )
    gate = twins(policy)
    gate.both(T, *asks(policy, 20))
    seen = gate.core.head.seq
    client.flushdb()
    gate.core = DictRecords("loss")
    answer = gate.ask_server(T, [Peek(policy)], seen)
    assert not answer.lost
    plan = policy.plan()
    gate.both(T + SECOND, Renew("loss", ((plan, "id-3", T, plan.lease, 4, "me"),)), *asks(policy, 3, 30), seen=seen)
    for step in range(1, 40):
        gate.both(T + SECOND + step * SECOND // 8, *asks(policy, 8, 100 * step), Peek(policy, leases=True), seen=seen)
    gate.both(T + 90 * SECOND, *asks(policy, 3, 9000))
    assert gate.core.head.quiet


def test_an_answer_says_whether_it_noticed_lost_state(twins: Any) -> None:
    policy = Policy("loss", [Bucket(9, per="1s")])
    gate = twins(policy)
    assert gate.ask_server(T, asks(policy, 1), seen=7).lost
    assert not gate.ask_server(T, asks(policy, 1, 1), seen=8).lost


def test_a_bad_command_of_a_batch_is_told_so_and_the_others_stand(twins: Any) -> None:
    old = Policy("kinds", [Window(5, per="1s", name="a"), Bucket(5, per="1s", name="b")])
    new = Policy("kinds", [Window(5, per="1s", name="a"), Concurrency(5, name="b")])
    gate = twins(old)
    first, second = asks(old, 2)
    other = Stand(old.plan(3), "id-0", "me", 0, remembered=True)
    changed = asks(new, 1, 7)[0]
    replies = gate.both(T, first, changed, other, second, changed, Peek(old))
    assert isinstance(replies[1], KindChanged)
    assert "reset() the gate" in str(replies[1])
    assert isinstance(replies[2], IdConflict)
    assert isinstance(replies[3], Grant)
    assert replies[5].limits[0].used == 2.0, "the one that failed on `b` was not charged on `a`"


def test_the_same_ask_again_is_the_same_permit_while_it_lives_and_over_until_a_minute_after_its_end(twins: Any) -> None:
    policy = Policy("ids", [Bucket(5, per="1s", name="b"), Concurrency(3, name="c")])
    gate = twins(policy)
    (command,) = asks(policy, 1)
    grant = gate.one(T, command)
    assert gate.both(T + 5, command, command) == [grant, grant]
    gate.one(T + 6, Settle(command.plan, T, command.id, "ok"))
    assert isinstance(gate.one(T + 59 * SECOND, command), AttemptOver)
    assert gate.one(T + 61 * SECOND, command).fence != grant.fence


def test_idle_states_and_ended_permits_are_forgotten_along_the_way(twins: Any, client: Any) -> None:
    policy = Policy("reaped", [Bucket(5, per="1s", name="b", by="org"), Window(5, per="1s", name="w", by="org")])
    gate = twins(policy)
    for number in range(6):
        now = T + number * 100 * SECOND
        gate.both(
            now,
            *[
                Stand(policy.plan(key={"org": f"{number}-{at}"}), f"{number}-{at}", remembered=True)
                for at in range(128)
            ],
        )
    assert client.zcard("hg:{reaped}:states:z") == len(gate.core.states) < 6 * 256
    assert client.hlen("hg:{reaped}:permits") == len(gate.core.space("permits")) < 6 * 128


def test_looking_at_a_gate_that_is_not_there_leaves_nothing(twins: Any, client: Any) -> None:
    policy = Policy("empty", [Window(5, per="1s"), Concurrency(3)])
    twins(policy).both(T, Peek(policy, leases=True), Peek(policy, plan=policy.plan()))
    assert client.keys() == []


def test_state_of_another_format_is_refused_and_left_alone(twins: Any, client: Any) -> None:
    policy = Policy("newer", [Bucket(5, per="1s")])
    gate = twins(policy)
    client.hset("hg:{newer}", "rest", redis_wire.pack(("2", 0, "", 0, 0, 0, 0, 0)))
    before = client.hgetall("hg:{newer}")
    with pytest.raises(StoreFormatError, match="format 2"):
        gate.ask_server(T, asks(policy, 1))
    assert client.hgetall("hg:{newer}") == before


def test_without_a_time_of_ours_the_servers_is_used_and_it_never_goes_back(twins: Any, client: Any) -> None:
    policy = Policy("time", [Bucket(5, per="1s")])
    gate = twins(policy)
    seconds, micros = client.time()
    answer = gate.ask_server(0, asks(policy, 1))
    assert 0 <= answer.now - (seconds * SECOND + micros) < 60 * SECOND
    assert gate.ask_server(T, asks(policy, 1, 1)).now == answer.now


def test_wakes_are_published_once_per_process_and_read_back(twins: Any, client: Any) -> None:
    policy = Policy("wakes", [Bucket(2, per="1s", slack=0, name="b")])
    gate = twins(policy)
    plan = policy.plan()
    gate.both(T, *asks(policy, 2), *[Stand(plan, f"w{n}", session="s1", waits=True) for n in range(3)])
    with client.pubsub() as channel:
        channel.subscribe(redis_script.channel("s1"))
        assert channel.get_message(timeout=60)["type"] == "subscribe"
        gate.one(T + SECOND, Pause("wakes", 0))
        assert redis_wire.wakes(channel.get_message(timeout=60)["data"])[:2] == [("w0", None), ("w1", None)]


def test_ids_holders_and_keys_arrive_as_they_were_sent(twins: Any) -> None:
    policy = Policy("words", [Concurrency(9, name="c", by="org")])
    gate = twins(policy)
    plan = policy.plan(key={"org": "a:b@c/d+e~f=g-h"})
    for number, holder in enumerate((None, "", "=", "chunk_001.pdf", "größer 犬\n\t", "x" * 300)):
        gate.one(T, Stand(plan, f"id {number} ü\n", holder, plan.lease, remembered=True))
    rows = gate.one(T, Peek(policy, leases=True)).leases
    assert [row.holder for row in rows] == [None, "", "=", "chunk_001.pdf", "größer 犬\n\t", "x" * 300]


def test_plain_asks_number_themselves_as_in_the_core(twins: Any) -> None:
    policy = Policy("plain", [Window(3, per="1s", name="w"), Concurrency(2, name="c")])
    gate = twins(policy)
    for number in range(600):
        plan = policy.plan()
        gate.both(
            T + number * 40_000, Admit(plan, f"{number}", None, plan.lease), Release(policy, f"{number - 1}", "ok")
        )


def test_what_a_batch_has_in_common_is_sent_once() -> None:
    policy = Policy("wire", [Window(5, per="1m"), Concurrency(3)])
    one, many = (redis_wire.encode("wire", asks(policy, count)) for count in (1, 64))
    assert len(many) - len(one) == 63 * 2


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (2**53, b"\xcf\x00\x20\x00\x00\x00\x00\x00\x00"),
        (-1, b"\xd3" + b"\xff" * 8),
        (1.5, b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        (None, b"\xc2"),
        (True, b"\xc3"),
        ("é", b"\xa2\xc3\xa9"),
        ("x" * 40, b"\xda\x00\x28" + b"x" * 40),
        ((1, ("a",)), b"\x92\x01\x91\xa1a"),
        ([0] * 20, b"\xdc\x00\x14" + b"\x00" * 20),
    ],
)
def test_values_are_packed_as_messagepack_says(value: Any, packed: bytes) -> None:
    assert redis_wire.pack(value) == packed
