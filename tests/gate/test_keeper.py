"""Leases that are renewed in the background, and what their holders are told."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate import Denied, Gate, LeaseLost, Permit
from headgate.events import Event, subscribe
from headgate.gate.keeper import keeper_of
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from tests.support.gates import Crowd, slots
from tests.support.waiting import until

#: Short, and yet longer than a busy machine keeps the background from its work.
SHORT = "2s"


def renewed(*permits: Permit) -> None:
    """Until the background has renewed each of them."""
    before = {permit: permit.lease_expires_at or 0.0 for permit in permits}
    until(lambda: all((permit.lease_expires_at or 0.0) > expires for permit, expires in before.items()))


def test_a_short_lease_lives_for_as_long_as_its_permit_is_held(store: str) -> None:
    gate = Gate("g", [slots(1, lease=SHORT)], store=store)
    permit = gate.acquire(holder="me")
    expires = permit.lease_expires_at
    assert expires is not None

    def outlived() -> bool:
        assert [holder.holder for holder in gate.holders()] == ["me"]
        assert gate.try_acquire() is None
        return (permit.lease_expires_at or 0.0) > expires + 2

    until(outlived)
    assert not permit.lost
    assert permit.release() is True


def test_fifty_short_leases_are_kept_by_one_thread(store: str) -> None:
    gate = Gate("g", [slots(50, lease=SHORT)], store=store)
    permits = [gate.acquire() for _ in range(50)]
    for _ in range(3):
        renewed(*permits)
    assert len(gate.holders()) == 50
    assert sum(thread.name == "headgate-keeper" and thread.is_alive() for thread in threading.enumerate()) >= 1
    assert all(permit.release() for permit in permits)


def test_a_short_lease_beside_a_long_one_is_renewed_in_time(store: str) -> None:
    gate = Gate("g", [slots(5, lease="1h")], store=store)
    long = gate.acquire()
    time.sleep(0.1)  # the background has settled down to the long one
    short = gate.acquire(lease=SHORT)
    for _ in range(3):
        renewed(short)
    assert {holder.id for holder in gate.holders()} == {long.id, short.id}
    assert short.release()


def test_without_renewal_a_lease_ends_by_itself(store: str) -> None:
    gate = Gate("g", [slots(1, lease="200ms")], store=store)
    permit = gate.acquire(renew=False)
    assert gate.acquire(timeout=60).waited >= 0.1
    assert permit.release() is False
    assert permit.lost


def test_renewal_ends_with_the_permit(store: str, events: list[Event]) -> None:
    gate = Gate("ending", [slots(4, lease="2s")], store=store)
    permits = [gate.acquire() for _ in range(4)]
    kept, *others = permits
    renewed(*permits)
    for permit, outcome in zip(others, ("ok", "error", "unsent"), strict=True):
        assert permit.release(outcome) is True
    ended = [permit.lease_expires_at for permit in others]
    renewed(kept)
    renewed(kept)
    assert [permit.lease_expires_at for permit in others] == ended
    assert [holder.id for holder in gate.holders()] == [kept.id]
    assert kept.release() is True
    assert not any(permit.lost for permit in permits)
    assert [event for event in events if event.gate == "ending"] == []


class Meddling:
    """The lock of a store, with which something else happens the moment it is free."""

    def __init__(self, lock: Any) -> None:
        self.acquire, self._is_owned = lock.acquire, lock._is_owned
        self._release = lock.release
        self.then: Callable[[], None] | None = None

    def release(self) -> None:
        self._release()
        then, self.then = self.then, None
        if then is not None:
            then()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_a_heartbeat_at_the_very_moment_of_a_release_takes_nothing_for_lost(events: list[Event]) -> None:
    store: Any = MemoryStore()
    lock = store._lock = Meddling(store._lock)
    gate = Gate("moment", [slots(1, lease="1h")], store=store)
    permit = gate.acquire()
    store.keeper._tick(time.monotonic())  # which has seen it, and renews it in twenty minutes
    lock.then = lambda: store.keeper._tick(time.monotonic() + 1800)
    assert permit.release() is True
    assert lock.then is None
    assert not permit.lost
    assert [event for event in events if event.gate == "moment"] == []


def test_the_holder_is_told_when_its_lease_is_lost(store: str, events: list[Event]) -> None:
    gate, other = Gate("told", [slots(1, lease="300ms")], store=store), Gate("told", [slots(1)], store=store)
    permit = gate.acquire(holder="unlucky")
    assert other.release(permit.id)
    until(lambda: permit.lost)
    until(lambda: any(event.facts.get("id") == permit.id for event in events))
    told = next(event for event in events if event.facts.get("id") == permit.id)
    assert (told.kind, told.gate, told.facts["holder"]) == ("lease_lost", "told", "unlucky")
    with pytest.raises(LeaseLost, match=permit.id):
        permit.renew()
    taken = other.acquire(timeout=60)
    assert permit.release() is False
    assert [holder.id for holder in gate.holders()] == [taken.id]
    assert sum(event.facts.get("id") == permit.id for event in events) == 1, "it is told once"


def test_a_dropped_permit_comes_back_after_its_lease_and_is_told(store: str, events: list[Event]) -> None:
    gate = Gate("careless", [slots(1, lease="300ms")], store=store)
    id = gate.acquire().id  # and nobody keeps it
    gc.collect()
    permit = gate.acquire(timeout=60)
    assert permit.id != id
    until(lambda: any(event.facts.get("id") == id for event in events))
    told = next(event for event in events if event.facts.get("id") == id)
    assert (told.kind, told.gate) == ("permit_dropped", "careless")


def test_an_event_sink_that_fails_stops_nobody(store: str, events: list[Event]) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    end = subscribe(broken)
    try:
        gate = Gate("g", [slots(1, lease=SHORT)], store=store)
        permit = gate.acquire()
        gate.release(permit.id)
        until(lambda: permit.lost)
        again = gate.acquire(timeout=60)
        renewed(again)
        assert again.release() is True
    finally:
        end()


def test_new_gates_that_come_while_others_wait_do_not_end_the_background(crowd: Crowd) -> None:
    store = MemoryStore()
    gate = Gate("g", [slots(1, lease=SHORT)], store=store)
    permit = gate.acquire()

    def wait(gate: Gate) -> None:
        with pytest.raises(Denied):
            gate.acquire(timeout=0.3)

    for n in range(150):
        other = Gate(f"other-{n}", [slots(1)], store=store)
        other.acquire(renew=False)
        crowd.start(wait, other)
    crowd.join()
    renewed(permit)
    assert not permit.lost
    assert permit.release() is True


def test_a_sweep_does_not_open_a_store_again_that_was_closed(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "g.db"))
    gate = Gate("g", [slots(1)], store=store)
    gate.usage()
    keeper, execute, asked = keeper_of(store), store.execute, threading.Event()

    def slowly(commands: Any) -> list[Any]:
        asked.set()
        time.sleep(0.2)
        [pulse] = execute(commands)
        return [replace(pulse, timer_at=pulse.now)]

    store.execute = slowly  # type: ignore[method-assign]
    keeper.sweep("g")
    assert asked.wait(30)
    store.close()
    time.sleep(0.5)
    assert store._transactions.file is None
