"""What is sent between an HTTP store and its guard, hostile bytes included."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied, Gate, StoreUnavailable, Window
from headgate.errors import IdConflict
from headgate.service.store_protocol.execute import StoreServer
from headgate.stores.http import HttpStore
from headgate.stores.http.client import GuardEndpoint, Response
from headgate.stores.http.wire import TooMany, decode, encode
from headgate.stores.memory import MemoryStore
from headgate.stores.remote.jobs import ConnectionLost
from headgate.testing import FakeClock
from tests.support.guards import GuardProcess, GuardThread, gate_of, one_of
from tests.support.histories import FAMILIES, History, plain, usual_deed
from tests.support.waiting import until


def test_a_flood_of_waiters_or_keys_beyond_the_caps_is_refused_while_those_inside_are_served() -> None:
    gates = """
[serve]
max_waiters = 3
max_keys = 2
[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "1h" }]
[gates.keyed]
limits = [{ window = 5, per = "1h", name = "w", by = "org" }]
"""
    guard = GuardThread(MemoryStore(), gates, any_gate=False)
    store = HttpStore(f"{guard.url}?timeout=5s")
    try:
        gate = one_of(store)  # type: ignore[arg-type]
        held = gate.acquire()
        inside: list[Any] = []
        waiters = [
            threading.Thread(target=lambda: inside.append(gate.acquire(timeout=60)), daemon=True) for _ in range(3)
        ]
        for number, waiter in enumerate(waiters):
            waiter.start()
            until(lambda number=number: gate.usage().waiting == number + 1)  # type: ignore[misc]
        for _ in range(5):
            with pytest.raises(TooMany, match="3 wait already"):
                gate.acquire(timeout=20)
        assert gate.usage().waiting == 3
        held.release()
        until(lambda: len(inside) == 1)
        inside[0].release()
        until(lambda: len(inside) == 2)
        inside[1].release()
        until(lambda: len(inside) == 3)
        inside[2].release()
        keyed = Gate("keyed", [Window(5, per="1h", name="w", by="org")], store=store)
        for org in ("a", "b", "a"):
            keyed.acquire(key={"org": org})
        with pytest.raises(TooMany, match="different keys"):
            keyed.acquire(key={"org": "c"})
    finally:
        store.close()
        guard.stop()


def post(url: str, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
    import http.client

    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/execute", body, {"Content-Type": kind})
    answer = connection.getresponse()
    told = answer.status, json.loads(answer.read())
    connection.close()
    return told


def test_a_guard_believes_nothing_that_it_is_sent() -> None:
    guard = GuardThread(MemoryStore())
    gate = Gate("g", [Window(5, per="1h", name="w"), Concurrency(5, name="c")], store="memory://")
    fingerprint, spec = gate._policy.fingerprint, gate._policy.spec()
    ask = ["a", 0, 0, {"requests": 1}, {}, "id-1", None, 30_000_000, 3, "session", 2**53]
    try:
        for number in (None, [], "x", 7):
            assert post(guard.url, json.dumps(number).encode())[0] in (400, 422)
        assert post(guard.url, b"{")[0] == 400
        assert post(guard.url, b"{}", "text/plain")[0] == 415
        assert post(guard.url, json.dumps({"v": 2, "commands": [ask]}).encode())[0] == 422
        bad: list[Any] = [
            [], ["?"], ["a"], None, 5, ["a", 5, *ask[2:]], ["a", -1, *ask[2:]], ["a", True, *ask[2:]],
            [*ask[:2], 7, *ask[3:]], [*ask[:3], {"requests": -1}, *ask[4:]], [*ask[:3], {"requests": "1"}, *ask[4:]],
            [*ask[:3], {"requests": 1, "pu": 1}, *ask[4:]], [*ask[:4], {"org": "x"}, *ask[5:]],
            [*ask[:5], "../../etc/passwd\0", *ask[6:]], [*ask[:5], "", *ask[6:]],
            [*ask[:7], -5, *ask[8:]], [*ask[:7], 2**60, *ask[8:]], [*ask[:8], 99, *ask[9:]],
            [*ask[:9], "../escape", *ask[10:]], [*ask[:10], -1], [*ask, 1],
            ["e", 0, 0, {"requests": 1}, {}, -5, "i", "ok", True, 0, None, 0, True],
            ["e", 0, 0, {"requests": 1}, {}, 5, "i", "great", True, 0, None, 0, True],
            ["e", 0, 0, {"requests": 1}, {}, 5, "i", "ok", True, 0, {"requests": -1}, 0, True],
            ["e", 0, 0, {}, {}, 5, "i", "ok", True, 0, None, 0, True],
            ["r", 0, "i", "fine", 0, None], ["c", 0, 5], ["n", "g", "a b", ["t"], []], ["n", 5, "s", [], []],
            ["n", "g", "s", [], [[0, 0, {"requests": 1}, {}, "i", 0, 1, 0, None]]], ["o", "g", "w", -1],
            ["o", "g", "w", "5"], ["u", "g", -5, ""], ["p", 9, None, False, False], ["t", 0, "i", 5],
        ]  # fmt: skip
        told = {"v": 1, "policies": [[fingerprint, spec]], "commands": [*bad, ask]}
        status, answer = post(guard.url, json.dumps(told).encode())
        assert status == 200
        refused, granted = answer["replies"][:-1], answer["replies"][-1]
        assert [reply for reply in refused if reply[:1] != ["x"]] == []
        assert isinstance(granted[0], int), "one error spoils nothing"
        # A policy that is not what its fingerprint says, or is none at all.
        others: list[Any] = [
            [fingerprint, [*spec[:1], [["window", 9, 1, 0, "w", "requests", None]], *spec[2:]]],
            [fingerprint, ["g"]],
            ["?", 5],
            [fingerprint, [None] * 6],
            ["x", ["h", [["?"]], "line", [], 1, 1]],
        ]
        for policy in others:
            fresh = {"v": 1, "policies": [policy], "commands": [ask]}
            status, answer = post(guard.url, json.dumps(fresh).encode())
            assert status in (200, 422), answer
            if policy[0] != fingerprint:
                assert answer["replies"][0][0] == "x"
    finally:
        guard.stop()


def test_an_answer_is_understood_however_it_arrives() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    body = b'{"v":1,"seen":{},"replies":[]}'
    chunked = b"".join(
        b"%x;x=1\r\n%s\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7)
    )
    whole = [
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"transfer-encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"content-length: %d\r\n\r\n" % len(body) + body,
    ]
    for text in whole:
        for size in (1, 2, 3, 5, 8, 1000):
            response = Response()
            for at in range(0, len(text), size):
                assert not response.done
                response.feed(text[at : at + size])
            assert response.done
            assert response.keeps
            assert decode(response.checked(), []) == ([], {}, {})
    until_closed = Response()
    for part in (b"HTTP/1.0 200 OK\r\n\r\n", body, b""):
        until_closed.feed(part)
    assert until_closed.checked() == body
    assert not until_closed.keeps
    for broken in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"x" * 70_000):
        with pytest.raises(ConnectionLost):
            Response().feed(broken)
    with pytest.raises(ConnectionLost):
        Response().feed(b"")


def test_an_ask_under_an_id_of_another_is_an_error_through_a_guard_as_well() -> None:
    guard = GuardThread(MemoryStore())
    store = HttpStore(f"{guard.url}?timeout=5s")
    gate = Gate("ids", [Window(5, per="1m", name="w")], store=store)
    gate.acquire(id="job", timeout=0)
    with pytest.raises(IdConflict, match="another ask"):
        gate.acquire(2, id="job", timeout=0)
    with pytest.raises(Denied) as denied:
        gate.acquire(6)
    assert denied.value.limit == "w"
    store.close()
    guard.stop()


def test_a_child_of_a_fork_has_connections_of_its_own(guard: GuardProcess) -> None:
    import os

    gate = gate_of(f"{guard.url}?timeout=5s")
    gate.acquire().release()
    child = os.fork()
    if not child:
        code = 1
        try:
            gate.acquire().release()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    gate.acquire().release()
    assert gate.usage()["w"].used == 3


def test_a_request_names_each_policy_once_however_many_commands_it_carries() -> None:
    from headgate.kernel.commands import Stand

    gate = Gate("g", [Window(5, per="1h", name="w")], store="memory://")
    plan = gate._policy.plan()
    told = json.loads(encode([Stand(plan, f"id-{number}", remembered=True) for number in range(50)], {"g": 7, "h": 9}))
    assert len(told["policies"]) == 1
    assert len(told["commands"]) == 50
    assert told["seen"] == {"g": 7}


class Carried:
    """The same commands on a store in memory, and on one behind the form in which a guard is asked."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plain, self.behind = MemoryStore(clock=self.clock), MemoryStore(clock=self.clock)
        self.told: tuple[list[Any], list[Any]] = ([], [])
        self._server = StoreServer({}, self.behind)
        self._loop = asyncio.new_event_loop()

    def listen(self, ticket: str) -> None:
        for store, told in zip((self.plain, self.behind), self.told, strict=True):
            store.listen(ticket, lambda delay, told=told: told.append((ticket, delay)))  # type: ignore[misc]

    def execute(self, commands: list[Any], which: int = 0) -> list[Any]:
        replies = self.plain.execute(commands)
        answer = self._server.execute(json.loads(encode(commands, {})), lambda scope: True)
        carried, seen, _ = decode(self._loop.run_until_complete(answer), commands)
        assert plain(carried) == plain(replies)
        assert [type(reply) for reply in carried] == [type(reply) for reply in replies]
        assert {gate: known.number for gate, known in seen.items()} == {
            gate: self.plain._gates[gate].head.seq for gate in seen
        }
        return replies

    def check(self) -> None:
        self._loop.close()
        assert self.told[0] == self.told[1]
        assert {gate: records.head.stored() for gate, records in self.behind._gates.items()} == {
            gate: records.head.stored() for gate, records in self.plain._gates.items()
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_carried_by_http_is_decided_and_answered_as_it_would_be_here(family: str) -> None:
    numbers = Random(11)
    pair = Carried()
    history = History(pair, FAMILIES[family])
    for _ in range(400):
        deeds = [usual_deed(numbers) for _ in range(numbers.randrange(1, 5))]
        pair.clock.advance(microseconds=numbers.choice([0, 1000, 333_333, 1_000_000]))
        history.execute(deeds)
    pair.check()


def test_an_endpoint_may_be_ipv6() -> None:
    endpoint = GuardEndpoint("http://[::1]:8420")
    assert b"Host: [::1]:8420\r\n" in endpoint.post("/", b"")


def test_a_guard_behind_tls_is_reached_by_threads_and_loops_and_a_strange_certificate_is_refused(
    tmp_path: Path,
) -> None:
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: it makes the certificate (apt-get install openssl)")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    guard = GuardThread(MemoryStore(), ssl_certfile=str(certificate), ssl_keyfile=str(key))
    url = f"https://localhost:{guard.port}?timeout=5s"
    store = HttpStore(f"{url}&ca={certificate}")
    strange = HttpStore(url)
    try:
        gate = one_of(store)
        held = gate.acquire()
        waiter = threading.Thread(target=lambda: gate.acquire(timeout=60).release(), daemon=True)
        waiter.start()
        until(lambda: gate.usage().waiting == 1)
        held.release()
        waiter.join(60)
        assert not waiter.is_alive()

        async def main() -> None:
            async with one_of(store, AsyncGate).acquire():
                pass

        asyncio.run(main())
        with pytest.raises(StoreUnavailable, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
            one_of(strange).acquire()
    finally:
        store.close()
        strange.close()
        guard.stop()
