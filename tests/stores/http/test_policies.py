"""A guard's limits count: gates that have none take them from it, follow its changes, and say where they differ."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import (
    AsyncGate,
    Bucket,
    Concurrency,
    ConfigError,
    Gate,
    InvalidInput,
    PolicyChanged,
    StoreUnavailable,
    Window,
)
from headgate.events import Event, subscribe
from headgate.stores.http import HttpStore
from headgate.stores.memory import MemoryStore
from tests.support.command_line import run
from tests.support.guards import GuardProcess, GuardThread

ADOBE = "[gates.adobe]\nlimits = [{ window = 190, per = '1m', name = 'rpm' }, { concurrency = 5, name = 'slots' }]\n"
SENTINEL = "[gates.sentinel]\nwaiting = 'promise'\nlimits = [{ bucket = 10, per = '1s', name = 'pu', unit = 'pu' }]\n"


@pytest.fixture
def guard() -> Iterator[GuardThread]:
    thread = GuardThread(MemoryStore(), ADOBE + SENTINEL, any_gate=False)
    yield thread
    thread.stop()


@pytest.fixture
def store(guard: GuardThread) -> Iterator[HttpStore]:
    made = HttpStore(f"{guard.url}?timeout=30s")
    yield made
    made.close()


@pytest.fixture
def events() -> Iterator[list[Event]]:
    found: list[Event] = []
    end = subscribe(found.append)
    yield found
    end()


def test_connect_gives_the_gates_of_a_guard_with_its_limits(guard: GuardThread) -> None:
    gates = headgate.connect(f"{guard.url}?timeout=30s")
    assert list(gates) == ["adobe", "sentinel"]
    assert "adobe" in gates
    assert "other" not in gates
    adobe = gates["adobe"]
    assert adobe is gates["adobe"]
    assert adobe.policy.limits == (Window(190, per="1m", name="rpm"), Concurrency(5, name="slots"))
    held = [adobe.acquire() for _ in range(5)]
    assert adobe.try_acquire() is None
    assert adobe.usage()["rpm"].used == 5
    for permit in held:
        permit.release()
    place = gates["sentinel"].reserve(cost={"requests": 1, "pu": 3})
    assert place.delay == 0
    with pytest.raises(KeyError, match=r"has no gate 'other'.*its gates are adobe, sentinel"):
        gates["other"]


def test_an_async_gate_of_a_guard_has_its_limits_too(guard: GuardThread) -> None:
    async def main() -> None:
        gate = headgate.connect(f"{guard.url}?timeout=30s").async_gate("adobe")
        async with gate.acquire():
            assert (await gate.usage())["slots"].used == 1
        assert isinstance(gate, AsyncGate)

    asyncio.run(main())


def test_a_gate_without_limits_needs_a_guard_and_takes_all_of_its_policy(store: HttpStore) -> None:
    with pytest.raises(InvalidInput, match=r"gate 'adobe' has no limits; give it some.*memory:// is none"):
        Gate("adobe")
    with pytest.raises(InvalidInput, match="is no guard, and knows no limits"):
        headgate.connect("memory://")
    with pytest.raises(InvalidInput, match="priorities with them: leave that out"):
        Gate("adobe", store=store, priorities={"live": 1.0})
    assert Gate("sentinel", store=store, max_delay="5s").policy.waiting == "promise"


def test_a_gate_without_limits_cannot_be_made_while_its_guard_is_away(guard: GuardThread) -> None:
    guard.stop()
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{guard.port}"):
        headgate.connect(guard.url)["adobe"]


def test_limits_that_differ_in_value_are_told_once_and_the_guards_count(store: HttpStore, events: list[Event]) -> None:
    gate = Gate("adobe", [Window(200, per="30s", name="rpm"), Concurrency(9, name="slots")], store=store)
    held = [gate.acquire() for _ in range(5)]
    assert gate.try_acquire() is None
    [told] = [event for event in events if event.kind == "limits_differ"]
    assert told.level == "warning"
    for words in (
        "'rpm' has limit 190 there and 200 here",
        "per 60 s there and 30 s here",
        "'slots' has limit 5 there and 9 here",
    ):
        assert words in str(told)
    assert gate.policy.limits == (Window(190, per="1m", name="rpm"), Concurrency(5, name="slots"))
    for permit in held:
        permit.release()
    assert gate.usage()["slots"].used == 0
    # A limit more or less of a unit that both know is a difference too, and no more than that.
    fewer = Gate("adobe", [Concurrency(5, name="slots")], store=store)
    fewer.acquire().release()
    assert "it has a limit 'rpm' there and not here" in str(events[-1])


def test_another_kind_unit_key_or_way_of_waiting_is_an_error_and_charges_nothing(store: HttpStore) -> None:
    looking = Gate("adobe", store=store)
    slots = Concurrency(5, name="slots")
    for limits, more, words in (
        ([Bucket(190, per="1m", name="rpm"), slots], {}, "'rpm' is a window there and a bucket here"),
        ([Window(190, per="1m", name="rpm", unit="pu"), slots], {}, "'rpm' has unit 'requests' there and 'pu' here"),
        ([Window(190, per="1m", name="rpm", by="org"), slots], {}, "'rpm' has by None there and 'org' here"),
        ([Window(190, per="1m", name="rpm")], {}, "it has a limit 'slots' there and not here"),
        ([Window(190, per="1m", name="rpm")], {"waiting": "promise"}, "waits by line there and by promise here"),
        ([Window(190, per="1m", name="rpm"), slots], {"priorities": {"live": 1.0}}, "priorities are none there"),
    ):
        gate = Gate("adobe", limits, store=store, **more)
        key = {"org": "acme"} if gate.policy.keys else None
        cost = {"requests": 1, "pu": 1} if "pu" in gate.policy.units else 1
        with pytest.raises(ConfigError, match="gate 'adobe' is another in the guard") as told:
            gate.reserve(cost, key) if more.get("waiting") else gate.acquire(cost, key)
        assert words in str(told.value)
        assert isinstance(told.value, PolicyChanged)
        assert gate.usage()["rpm"].used == looking.usage()["rpm"].used == 0


def test_what_a_guard_has_no_gate_for_is_refused_with_what_would_be_right(store: HttpStore) -> None:
    with pytest.raises(ConfigError, match=r"has no gate 'unknown'.*--any-gate"):
        Gate("unknown", [Bucket(1, per="1s")], store=store).acquire()


# --- the guard's file changes --------------------------------------------------------------------------------------------

SLOTS = "store = 'sqlite:///guard.db'\n[gates.g]\nlimits = [{ concurrency = %d, name = 'slots', lease = '1h' }]\n"
RATE = (
    "store = 'sqlite:///guard.db'\n[gates.g]\nlimits = [{ window = 7, per = '1h', name = 'pu', unit = 'pu' }, "
    "{ concurrency = 3, name = 'other', lease = '1h' }]\n"
)
ORGS = "store = 'sqlite:///guard.db'\n[gates.g]\nlimits = [{ window = 7, per = '1h', name = 'hourly', by = 'org' }]\n"


def changed(guard: GuardProcess, folder: Path, config: str) -> None:
    guard.stop()
    (folder / "headgate.toml").write_text(config, encoding="utf-8")
    guard.start()


def until_back(ask: Any) -> Any:
    """A gate takes its guard for away for a moment after a restart."""
    end = time.monotonic() + 120
    while True:
        try:
            return ask()
        except StoreUnavailable:
            assert time.monotonic() < end, "the guard did not come back"
            time.sleep(0.05)


def test_gates_without_limits_follow_a_guard_that_was_started_with_others(tmp_path: Path, events: list[Event]) -> None:
    guard = GuardProcess(tmp_path, SLOTS % 2)
    try:
        gate = headgate.connect(f"{guard.url}?timeout=30s")["g"]
        held = [gate.acquire(), gate.acquire()]
        assert gate.try_acquire() is None
        changed(guard, tmp_path, SLOTS % 3)
        held.append(until_back(gate.acquire))
        assert gate.policy.limits[0].limit == 3
        assert [event.facts for event in events if event.kind == "value_changed"] == [{"limit": "slots", "value": 3}]
        assert gate.try_acquire() is None
        # Other limits altogether: the next ask is made again with them, and a permit from before can still be ended.
        changed(guard, tmp_path, RATE)
        fresh = until_back(lambda: gate.acquire(cost={"requests": 1, "pu": 2}))
        assert gate.usage()["pu"].used == 2
        assert gate.usage()["other"].used == 1
        held[0].release()
        fresh.release()
        assert gate.usage()["other"].used == 0
        with pytest.raises(InvalidInput, match="pu"):
            gate.acquire()
        # What the ask says and the new limits do not know is for the caller to change.
        changed(guard, tmp_path, ORGS)
        with pytest.raises(InvalidInput, match="limits no unit 'pu'"):
            until_back(lambda: gate.acquire(cost={"requests": 1, "pu": 2}))
        until_back(lambda: gate.acquire(key={"org": "acme"})).release()
        assert gate.usage(key={"org": "acme"})["hourly"].used == 1
    finally:
        guard.kill()


# --- files and the command line ---------------------------------------------------------------------------------------


def test_a_file_may_leave_the_limits_to_the_guard(tmp_path: Path) -> None:
    guard = GuardProcess(tmp_path, SLOTS % 2)
    folder = tmp_path / "worker"
    folder.mkdir()
    file = folder / "headgate.toml"
    file.write_text(f"store = '{guard.url}?timeout=30s'\n[gates.g]\non_store_error = 'open'\n")
    try:
        gates = headgate.load(str(file))
        permit = gates["g"].acquire(holder="me")
        assert gates["g"].policy.limits[0].limit == 2
        for command in (["status", "--json"], ["limits", "list", "--json"], ["leases", "list", "--json"]):
            done = run("--config", str(file), *command)
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)
        done = run("--config", str(file), "doctor", "--json")
        assert done.exit_code == 0, done.output
        told = [check["detail"] for check in json.loads(done.stdout)["checks"]]
        assert any("the guard has g; its limits count" in detail for detail in told)
        permit.release()
        file.write_text(
            f"store = '{guard.url}?timeout=30s'\n"
            f"[gates.g]\nlimits = [{{ concurrency = 4, name = 'slots', lease = '1h' }}]\n"
            f"[gates.h]\nlimits = [{{ concurrency = 4, name = 'slots' }}]\n"
        )
        done = run("--config", str(file), "doctor", "--json")
        checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
        assert checks["gate g"]["level"] == "note"
        assert "limit 'slots' has limit 2 there and 4 here" in checks["gate g"]["detail"]
        assert checks["gate h"]["level"] == "wrong"
        assert "has no gate 'h'" in checks["gate h"]["detail"]
        assert done.exit_code == 1
        for text, words in (
            (
                f"store = '{guard.url}'\n[gates.g]\nwaiting = 'promise'\n",
                "takes those of its guard, and its waiting too",
            ),
            ("[gates.g]\nwaiting = 'promise'\n", "there are no limits"),
        ):
            file.write_text(text)
            with pytest.raises(ConfigError, match=words):
                headgate.load(str(file))
    finally:
        guard.kill()
