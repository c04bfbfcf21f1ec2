"""A Redis that refuses: passwords, memory, keys of others, commands that are forbidden."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from headgate import Concurrency, Gate, StoreUnavailable, Window
from headgate.errors import StoreFormatError
from tests.support.redis_gates import PATIENT, answers, gate_of
from tests.support.servers import Server, new
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, timed, until


@DECIDES_IN_TIME
def test_a_wrong_password_is_named_and_not_tried_for_ever(stores: Any) -> None:
    with new(password="right") as server:
        gate_of(stores(server.url)).acquire()
        for url in (server.url.replace(":right@", ":wrong@"), server.url.replace(":right@", "")):
            before = server.command("INFO", "stats")
            took, answer = timed(gate_of(stores(url)).acquire)
            assert isinstance(answer, StoreUnavailable)
            assert "password" in str(answer)
            assert "wrong" not in str(answer).replace("WRONGPASS", ""), "a password is not shown"
            assert took < DECIDED
            time.sleep(1)
            assert connections(server.command("INFO", "stats")) - connections(before) <= 2, "one attempt, and this look"


def connections(stats: bytes) -> int:
    return int(stats.decode().partition("total_connections_received:")[2].split()[0])


@DECIDES_IN_TIME
def test_a_full_server_is_named_and_what_was_held_is_given_back_later(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    permit = gate.acquire()
    server.fill_up()
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert "maxmemory" in str(answer)
    assert took < DECIDED
    assert permit.release() is True
    assert gate._store._requests.seen["g"] > 0
    server.command("CONFIG", "SET", "maxmemory", "0")
    until(lambda: answers(gate))
    until(lambda: permit.id not in [holder.id for holder in gate.holders()])


BUSY = """
local began = redis.call('TIME')
local now
repeat now = redis.call('TIME') until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 500000
"""


def test_a_server_that_is_busy_with_a_script_of_somebody_else_is_waited_for(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url + PATIENT), "open")
    gate.acquire().release()
    server.command("CONFIG", "SET", "lua-time-limit", "1")
    other = threading.Thread(target=server.command, args=("EVAL", BUSY, "0"), kwargs={"timeout": 60.0})
    other.start()

    def is_busy() -> bool:
        try:
            server.command("PING")
        except AssertionError as error:
            return "BUSY" in str(error)
        return False

    until(is_busy)
    permit = gate.acquire()
    assert "untracked" not in repr(permit)
    permit.release()
    other.join(60)


def test_a_key_of_somebody_else_is_named_and_left_alone(server: Server, stores: Any) -> None:
    server.command("SET", "hg:{g}", "mine")
    with pytest.raises(StoreFormatError, match=re.escape("hg:{g}")):
        gate_of(stores(server.url + PATIENT)).acquire()
    assert server.command("GET", "hg:{g}") == b"mine"


def test_where_scripts_may_not_ask_for_the_time_the_callers_clock_is_used(server: Server, stores: Any) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-time")
    url = f"redis://app:secret@127.0.0.1:{server.port}/0{PATIENT}"
    gate = Gate("g", [Window(10, per="1s", slack=0, name="w"), Concurrency(50, name="c")], store=stores(url))
    asked, passed = [], []  # each was decided between the two
    while len(passed) < 30:
        before = time.monotonic()
        if gate.try_acquire() is not None:
            asked.append(before)
            passed.append(time.monotonic())
    assert all(after - first > 0.95 for first, after in zip(asked, passed[10:], strict=False))
    looked = time.monotonic()
    [holder, *_] = gate.holders()
    assert looked - passed[0] - 1 < holder.held_for < time.monotonic() - asked[0] + 1
    assert any("TIME" in line for _, line, _ in stores(url).examine())


def test_where_the_user_may_not_publish_waiters_go_by_their_heartbeats(server: Server, stores: Any) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "+@all")
    url = f"redis://app:secret@127.0.0.1:{server.port}/0{PATIENT}"
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(url))
    held = gate.acquire()
    waiter = threading.Thread(target=lambda: gate.acquire(timeout=60).release())
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    assert held.release() is True
    waiter.join(60)
    assert not waiter.is_alive()
    until(lambda: gate.holders() == [])
    assert any(level == "wrong" and "publish" in line for level, line, _ in stores(url).examine())


def test_the_callers_clock_is_set_by_the_servers_where_that_may_be_asked(server: Server, stores: Any) -> None:
    store = stores(server.url + PATIENT)
    store._requests.sends_time = True
    store._requests.clock = store._requests.own_time
    gate = gate_of(store)
    permit = gate.acquire()
    assert permit.lease_expires_at is not None
    assert abs(permit.lease_expires_at - 3600 - time.time()) < 1
