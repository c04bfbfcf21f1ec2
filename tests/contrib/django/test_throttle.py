"""A throttle on a gate beside DRF's own: the same limit, asked by many at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client, RequestFactory
from rest_framework.throttling import SimpleRateThrottle

from headgate import Concurrency, Gate, InvalidInput, Window
from headgate.contrib.django.drf import GateThrottle
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import used

LIMIT, THREADS = 10, 16


class Own(SimpleRateThrottle):
    """DRF's own, whose cache takes a moment to answer, as one over the network does."""

    rate = f"{LIMIT}/hour"
    scope = "own"

    def __init__(self, together: threading.Barrier) -> None:
        super().__init__()
        self._together = together

    def get_cache_key(self, request: Any, view: Any) -> str:
        return "throttle-own"

    def allow_request(self, request: Any, view: Any) -> bool:
        return bool(super().allow_request(request, view))

    def throttle_success(self) -> bool:
        # Between its read and its write: DRF read the history before, and writes it after.
        self._together.wait(timeout=30)
        return bool(super().throttle_success())


class OnGate(GateThrottle):
    gate = Gate("throttle-side-by-side", [Window(LIMIT, per="1h", by="address")], store="memory://side-by-side")


def admitted(ask: Any) -> int:
    passed: list[bool] = []

    def one() -> None:
        passed.append(ask())

    threads = [threading.Thread(target=one) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(passed)


def test_drfs_own_throttle_races_and_the_gate_does_not() -> None:
    cache.clear()
    together = threading.Barrier(THREADS)
    request = RequestFactory().get("/")
    assert admitted(lambda: Own(together).allow_request(request, None)) == THREADS, "all of them read the same history"
    assert admitted(lambda: OnGate().allow_request(request, None)) == LIMIT


def test_a_throttled_request_is_told_when_to_come_again() -> None:
    client = Client()
    answers = [client.get("/rated/") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 3590 < int(answers[-1]["Retry-After"]) <= 3604
    other = Client(REMOTE_ADDR="10.0.0.9").get("/rated/")
    assert other.status_code == 200


def test_slots_that_a_throttle_took_are_released_with_the_view(acme: Organization) -> None:
    client = Client()
    for _ in range(25):  # more than there are slots
        assert client.get("/throttled/", headers={"X-Org": acme.name}).json() == {"slots": 1}
    assert used(acme) == 0


def test_a_throttle_by_slots_of_its_own_gate_releases_them() -> None:
    class Slots(GateThrottle):
        gate = Gate("slots-of-a-throttle", [Concurrency(2)], store="memory://slots-of-a-throttle")

    class View:
        def finalize_response(self) -> str:
            return "done"

        def handle_exception(self, error: Exception) -> None:
            raise error

    views: list[Any] = [View(), View(), View()]
    request = RequestFactory().get("/")
    assert [Slots().allow_request(request, view) for view in views] == [True, True, False]
    assert views[0].finalize_response() == "done"
    with pytest.raises(KeyError):
        views[1].handle_exception(KeyError())
    assert Slots.gate is not None
    assert Slots.gate.usage()["concurrency"].used == 0


def test_a_throttle_without_a_gate_says_so() -> None:
    with pytest.raises(InvalidInput, match="has no gate"):
        GateThrottle().allow_request(RequestFactory().get("/"), None)
