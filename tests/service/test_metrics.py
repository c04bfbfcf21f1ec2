"""`/metrics`: what it says is true, in a form that Prometheus reads, in as many series as the configuration has names."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Concurrency, Gate, Window, events
from headgate.service.observe.metrics import OTHER, metrics_of
from headgate.sinks.prometheus import BUCKETS, METRICS, Prometheus
from headgate.stores.http import HttpStore
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support import ROOT
from tests.support.guards import GuardThread

GATES = """
[gates.api]
priorities = { live = 1.0, batch = 0.5 }
limits = [
  { window = 4, per = "10s", name = "rate" },
  { concurrency = 3, name = "slots", lease = "1h" },
]

[gates.tenants]
limits = [
  { window = 10, per = "1h", name = "org-rate", by = "org" },
  { concurrency = 4, name = "org-slots", by = "org", lease = "1h" },
  { concurrency = 1000, name = "all", lease = "1h" },
]
"""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

_LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def parsed(text: str) -> Samples:
    """The samples of the text format; fails on what is none."""
    samples: Samples = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
            continue
        if line.startswith("# HELP "):
            continue
        found = _LINE.fullmatch(line)
        assert found, line
        name, labels, value = found.groups()
        assert name in typed or re.sub("_(bucket|sum|count)$", "", name) in typed, line
        place = (name, tuple(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', labels or "")))
        assert place not in samples, f"twice: {line}"
        samples[place] = float(value)
    return samples


class Scraped:
    """A guard, and what it says."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.guard = GuardThread(MemoryStore(clock=self.clock), GATES)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.guard.port, timeout=60)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {} if body is None else {"Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        self.kind = answer.getheader("content-type")
        return answer.status, json.loads(text) if "json" in (self.kind or "") else text.decode()

    def acquire(self, gate: str, **ask: Any) -> tuple[int, Any]:
        return self.call("POST", f"/v1/gates/{gate}/acquire", ask)

    def text(self) -> str:
        status, text = self.call("GET", "/metrics")
        assert status == 200
        return str(text)

    def __call__(self, name: str, **labels: str) -> float:
        """A value at this moment."""
        return parsed(self.text()).get((name, tuple(labels.items())), 0.0)


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    made = Scraped()
    yield made
    made.connection.close()
    if "metrics" in made.guard.guard.state:
        metrics_of(made.guard.guard).close()
    made.guard.stop()


def test_every_name_is_told_with_its_type_and_the_text_is_what_prometheus_reads(scraped: Scraped) -> None:
    text = scraped.text()
    assert scraped.kind == "text/plain; version=0.0.4; charset=utf-8"
    for name, (kind, _, about) in METRICS.items():
        assert f"# HELP {name} {about}\n# TYPE {name} {kind}\n" in text
    samples = parsed(text)
    assert samples["headgate_limit", (("gate", "api"), ("limit", "rate"))] == 4
    assert samples["headgate_limit", (("gate", "api"), ("limit", "rate@batch"))] == 2


def test_grants_refusals_outcomes_and_gauges_are_those_of_the_gate(scraped: Scraped) -> None:
    assert scraped.acquire("api")[0] == 200  # before anybody asked for metrics: the tally begins with it
    ids = [scraped.acquire("api", holder="x")[1]["id"] for _ in range(2)]
    assert scraped.acquire("api")[0] == 429
    assert scraped("headgate_permits_total", gate="api", outcome="granted") == 3
    assert scraped("headgate_permits_total", gate="api", outcome="refused") == 1
    assert scraped("headgate_leases", gate="api", limit="slots") == 3
    assert scraped("headgate_used", gate="api", limit="rate") == 3
    assert scraped("headgate_utilisation", gate="api", limit="slots") == 1
    assert scraped("headgate_store_up", gate="api") == 1
    for id, outcome in zip(ids, ("ok", "rate_limited"), strict=True):
        assert scraped.call("POST", f"/v1/permits/{id}/release", {"outcome": outcome, "retry_after": 5})[0] == 200
    assert scraped("headgate_upstream_total", gate="api", **{"class": "rate_limited"}) == 1
    assert scraped("headgate_leases", gate="api", limit="slots") == 1
    assert scraped("headgate_paused", gate="api") == 1
    assert scraped("headgate_paused", gate="tenants") == 0


def test_waits_and_holds_are_timed(scraped: Scraped) -> None:
    scraped.text()
    first = scraped.acquire("api")[1]["id"]
    assert scraped("headgate_wait_seconds_count", gate="api") == 1
    assert scraped("headgate_wait_seconds_bucket", gate="api", le="0.001") == 1
    scraped.call("POST", f"/v1/permits/{first}/release", {})
    assert scraped("headgate_hold_seconds_count", gate="api") == 1
    assert 0 < scraped("headgate_hold_seconds_sum", gate="api") < 20
    assert scraped("headgate_hold_seconds_bucket", gate="api", le="+Inf") == 1


def test_what_http_stores_and_batches_ask_is_counted_like_any_other(scraped: Scraped) -> None:
    scraped.text()
    store = HttpStore(f"{scraped.guard.url}?timeout=5s")
    limits = [Window(4, per="10s", name="rate"), Concurrency(3, name="slots", lease="1h")]
    gate = Gate("api", limits, store=store, priorities={"live": 1.0, "batch": 0.5})
    held = [gate.acquire() for _ in range(3)]
    assert gate.try_acquire() is None
    waited: list[Any] = []
    waiter = threading.Thread(target=lambda: waited.append(gate.acquire(timeout=60)), daemon=True)
    waiter.start()
    while not (scraped("headgate_waiters", gate="api") and scraped("headgate_guard_streams")):
        pass
    held[0].release()
    waiter.join(60)
    waited[0].release("overloaded")
    Gate("mine", [Window(5, per="1s")], store=store).acquire()
    store.close()
    assert scraped("headgate_permits_total", gate="api", outcome="granted") == 4
    assert scraped("headgate_permits_total", gate="api", outcome="refused") == 1
    assert scraped("headgate_upstream_total", gate="api", **{"class": "overloaded"}) == 1
    assert scraped("headgate_hold_seconds_count", gate="api") == 2
    assert scraped("headgate_wait_seconds_sum", gate="api") > 0
    assert scraped("headgate_permits_total", gate=OTHER, outcome="granted") == 1
    commands = [{"do": "acquire", "gate": "tenants", "key": {"org": "a"}}] * 5
    scraped.call("POST", "/v1/batch", {"commands": commands})
    assert scraped("headgate_permits_total", gate="tenants", outcome="granted") == 4
    assert scraped("headgate_permits_total", gate="tenants", outcome="refused") == 1


def test_there_are_no_series_by_key_holder_or_id_however_many_ask(scraped: Scraped) -> None:
    scraped.text()
    scraped.acquire("tenants", key={"org": "first"}, holder="somebody", id="some-id")
    few = len(parsed(scraped.text()))
    for number in range(200):
        scraped.acquire("tenants", key={"org": f"org-{number}"}, holder=f"holder-{number}", id=f"id-{number}")
    text = scraped.text()
    assert len(parsed(text)) == few
    for word in ("org-1", "holder-", "id-1", "first", "somebody"):
        assert f"{word}" not in text.replace("org-rate", "").replace("org-slots", "")


def test_the_fullest_key_of_each_limit_is_one_gauge(scraped: Scraped) -> None:
    scraped.text()
    for number in range(100):
        scraped.acquire("tenants", key={"org": f"small-{number}"})
    for _ in range(3):
        scraped.acquire("tenants", key={"org": "big"})
    assert scraped("headgate_key_utilisation_max", gate="tenants", limit="org-slots") == 0.75
    assert scraped("headgate_key_utilisation_max", gate="tenants", limit="org-rate") == 0.3
    assert scraped("headgate_key_utilisation_max", gate="api", limit="rate") == 0


def test_overshoot_stays_0_through_refusals_lowered_limits_and_settled_costs_and_finds_what_is_wrong(
    scraped: Scraped,
) -> None:
    def overshoot() -> float:
        return sum(value for (name, _), value in parsed(scraped.text()).items() if name == "headgate_overshoot_total")

    overshoot()
    ids = [scraped.acquire("api")[1]["id"] for _ in range(3)]
    for _ in range(5):
        scraped.acquire("api")
    assert overshoot() == 0
    scraped.call("PUT", "/v1/gates/api/limits/slots", {"value": 1})
    assert scraped("headgate_utilisation", gate="api", limit="slots") == 3
    assert overshoot() == 0
    scraped.call("POST", f"/v1/permits/{ids[0]}/release", {"cost": {"requests": 50}})
    assert scraped("headgate_used", gate="api", limit="rate") > 4
    assert overshoot() == 0
    # A lease that nobody was granted, put into the state behind everybody's back.
    leases = scraped.guard.store._gates["api"].leases["slots"]
    for number in range(5):
        leases.put(f"smuggled-{number}", (("", 0, (), ()), 0, 0, None), scraped.clock() + 10**9)
    assert overshoot() == 1
    assert scraped("headgate_overshoot_total", gate="api", limit="slots") == 1


def test_overshoot_between_two_scrapes_is_counted_by_any_look_even_if_it_is_over_at_the_next_scrape(
    scraped: Scraped,
) -> None:
    scraped.acquire("api")
    scraped.text()
    leases = scraped.guard.store._gates["api"].leases["slots"]
    for number in range(5):
        leases.put(f"smuggled-{number}", (("", 0, (), ()), 0, 0, None), scraped.clock() + 10**9)
    assert scraped.call("GET", "/v1/gates/api")[0] == 200
    for number in range(5):
        leases.delete(f"smuggled-{number}")
    assert scraped("headgate_leases", gate="api", limit="slots") == 1
    assert scraped("headgate_overshoot_total", gate="api", limit="slots") == 1


def test_nothing_is_listened_to_until_somebody_asks_for_metrics() -> None:
    guard = GuardThread(MemoryStore(), GATES)
    try:
        assert guard.guard.answer_listeners == []
        sinks = len(events._sinks)
        asyncio.run(metrics_of(guard.guard).scrape())
        assert len(guard.guard.answer_listeners) == len(guard.guard.usage_listeners) == 1
        assert len(events._sinks) == sinks + 1
        metrics_of(guard.guard).close()
        assert guard.guard.answer_listeners == guard.guard.usage_listeners == []
        assert len(events._sinks) == sinks
    finally:
        guard.stop()


def test_a_store_that_does_not_answer_shows_and_the_others_are_still_told(tmp_path: Any) -> None:
    import socket

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    away = f'[gates.away]\nstore = "http://127.0.0.1:{port}"\nlimits = [{{ window = 1, per = "1s" }}]\n'
    guard = GuardThread(MemoryStore(), GATES + away)
    try:
        samples = parsed(asyncio.run(metrics_of(guard.guard).scrape()))
        assert samples["headgate_store_up", (("gate", "away"),)] == 0
        assert samples["headgate_store_errors_total", (("gate", "away"),)] >= 1
        assert samples["headgate_store_up", (("gate", "api"),)] == 1
    finally:
        metrics_of(guard.guard).close()
        guard.stop()


# --- the sink by itself -------------------------------------------------------------------------------------------------


def test_a_process_without_a_guard_can_tell_its_gates_and_events_too() -> None:
    metrics = Prometheus()
    end = events.subscribe(metrics)
    gate = Gate("own", [Window(4, per="10s", name="w"), Concurrency(2, name="c")], store=MemoryStore())
    held = gate.acquire()
    for kind in ("store_down", "store_up"):
        events.emit(kind, "own", error="it is gone", mode="closed", seconds=1.0)
    end()
    metrics.look(gate.usage())
    metrics.set("headgate_dead_letters", 10, "chunks")
    samples = parsed(metrics.text())
    assert samples["headgate_dead_letters", (("queue", "chunks"),)] == 10
    assert samples["headgate_leases", (("gate", "own"), ("limit", "c"))] == 1
    assert samples["headgate_utilisation", (("gate", "own"), ("limit", "w"))] == 0.25
    assert samples["headgate_store_errors_total", (("gate", "own"),)] == 1
    assert samples["headgate_store_up", (("gate", "own"),)] == 1
    held.release()


def test_buckets_are_cumulative_and_hostile_labels_are_escaped() -> None:
    metrics = Prometheus()
    for seconds in (0.0, 0.001, 0.0011, 3.0, 1e9):
        metrics.observe("headgate_wait_seconds", seconds, 'a"b\\c\nd')
    counts = [value for (name, _), value in parsed(metrics.text()).items() if name == "headgate_wait_seconds_bucket"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1], len(counts)) == (2, 5, len(BUCKETS["headgate_wait_seconds"]) + 1)
    assert '{gate="a\\"b\\\\c\\nd",le="0.001"} 2\n' in metrics.text()


def test_the_reference_page_repeats_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(headgate_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", page, flags=re.MULTILINE)
    told = [
        (name, kind, ", ".join(f"`{label}`" for label in labels) or "none", about)
        for name, (kind, labels, about) in METRICS.items()
    ]
    assert rows == told
