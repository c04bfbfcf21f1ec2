"""A store says which kinds of limit it can decide; a gate with another is refused in words when it is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, InvalidInput, Quota, Window
from headgate.kernel.plan import Policy
from headgate.limits import KINDS
from headgate.stores.http.store import HttpStore
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.store import RedisStore
from tests.support.own_kind import Tumbling, registered

ALL = [Window(1, per="1m"), Bucket(1, per="1m"), Quota(1), Concurrency(1)]


@pytest.fixture
def with_own_kind() -> Iterator[None]:
    with registered():
        yield


@pytest.mark.usefixtures("with_own_kind")
@pytest.mark.parametrize("make", [Gate, AsyncGate])
def test_a_kind_without_a_script_is_refused_when_a_gate_on_redis_is_made(make: type[Gate] | type[AsyncGate]) -> None:
    store = RedisStore("redis://user:secret@localhost:1/0")  # which nobody connects to
    with pytest.raises(InvalidInput) as refused:
        make("g", [Window(1, per="1m", name="w"), Tumbling(3, per="1m", name="t")], store=store)
    told = str(refused.value)
    assert "gate 'g': limit 't' is of the kind 'tumbling', which redis://user:***@localhost:1/0 cannot decide" in told
    assert "it has bucket, concurrency, quota, window; use one of those, or a store" in told
    assert "memory://, sqlite:///… or dynamodb://…" in told
    store.close()


def test_the_kinds_of_headgate_itself_are_decided_by_every_store() -> None:
    assert RedisStore.capabilities.kinds == set(KINDS)
    for store in (RedisStore("redis://localhost:1"), HttpStore("http://localhost:1"), MemoryStore()):
        for limit in ALL:
            Gate("g", [limit], store=store)
        store.close()


def test_a_kind_that_this_process_has_not_is_refused_when_a_gate_on_a_guard_is_made() -> None:
    store = HttpStore("http://localhost:1")
    with pytest.raises(InvalidInput, match="of the kind 'tumbling', which http://localhost:1 cannot decide"):
        Gate("g", [Tumbling(3, per="1m")], store=store)
    store.close()


@pytest.mark.usefixtures("with_own_kind")
def test_a_kind_that_this_process_has_may_be_sent_to_a_guard_which_says_what_it_knows() -> None:
    store = HttpStore("http://localhost:1")
    Gate("g", [Tumbling(3, per="1m")], store=store)
    store.close()


def test_a_guard_without_the_kind_of_a_client_says_which_it_has() -> None:
    spec = Policy("g", [Tumbling(3, per="1m")]).spec()
    with pytest.raises(
        InvalidInput, match="no kind of limit 'tumbling' in this process, which has window, bucket, quota"
    ):
        Policy.from_spec(spec)
