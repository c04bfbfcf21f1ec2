"""The files of the dashboard, and the stream of samples that feeds it."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from typing import Any

import pytest

from headgate.service.dashboard import FILES, POLICY
from tests.support import ROOT
from tests.support.browser import Guard

DASHBOARD = ROOT / "src" / "headgate" / "service" / "dashboard"


# --- what is served -----------------------------------------------------------------------------------------------------


def test_no_file_of_the_dashboard_has_inline_code_or_an_outside_address() -> None:
    served = {path.name for path in DASHBOARD.iterdir() if path.is_file() and path.suffix != ".py"}
    assert served == set(FILES)

    class Inline(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            names = dict(attrs)
            assert not any(name.startswith("on") or name == "style" for name in names), (tag, attrs)
            assert tag != "style"
            if tag == "script":
                assert names.get("src"), "an inline script"
            for name in ("src", "href"):
                assert (names.get(name) or "/").startswith(("/", "#")), (tag, attrs)

    Inline().feed((DASHBOARD / "index.html").read_text(encoding="utf-8"))
    for name in served - {"uplot.js", "uplot.css", "uplot.LICENSE", "icon.svg"}:
        text = (DASHBOARD / name).read_text(encoding="utf-8")
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "innerHTML" not in text, name
    assert "MIT" in (DASHBOARD / "uplot.LICENSE").read_text(encoding="utf-8")


def test_every_file_carries_the_policy_and_is_sent_once(guard: Guard) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guard.port)
    for path in ["/", *(f"/dashboard/{name}" for name in FILES)]:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, path
        assert answer.read()
        assert answer.headers["content-security-policy"].encode() == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        connection.request("GET", path, headers={"if-none-match": answer.headers["etag"]})
        again = connection.getresponse()
        assert (again.status, again.read()) == (304, b"")
    for path in ("/dashboard/__init__.py", "/dashboard/..%2fapp.py", "/dashboard/"):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 404, path
        answer.read()
    connection.close()


# --- the stream ---------------------------------------------------------------------------------------------------------


@contextmanager
def events(guard: Guard) -> Iterator[Any]:
    """The answer to one who watches."""
    connection = http.client.HTTPConnection("127.0.0.1", guard.port, timeout=60)
    try:
        connection.request("GET", "/v1/events")
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def next_event(answer: Any) -> tuple[str, Any]:
    name = answer.readline().decode().removeprefix("event: ").strip()
    data = answer.readline().decode().removeprefix("data: ")
    assert answer.readline() == b"\n"
    return name, json.loads(data)


def test_all_who_watch_get_the_same_samples_and_the_counts_of_what_was_asked(guard: Guard) -> None:
    held = [guard.acquire("adobe") for _ in range(4)]
    with pytest.raises(urllib.error.HTTPError, match="429"):
        guard.acquire("adobe")
    guard.release(held[0], "rate_limited")
    with ExitStack() as stack:
        answers = [stack.enter_context(events(guard)) for _ in range(3)]
        hellos = [next_event(answer) for answer in answers]
        assert {name for name, _ in hellos} == {"hello"}
        seen = [{told["sampled_at"]: told for _, told in (next_event(answer) for _ in range(4))} for answer in answers]
    common = set(seen[0]) & set(seen[1]) & set(seen[2])
    assert len(common) >= 2
    assert all(seen[0][at] == seen[1][at] == seen[2][at] for at in common)
    rows = hellos[0][1]["history"]["adobe"]
    rows += [[at, *told["gates"][0]["counts"]] for at, told in seen[0].items()]
    assert [sum(row[place] for row in rows) for place in (1, 2, 3)] == [4, 1, 1]


def test_more_watchers_than_it_takes_are_refused_and_those_who_left_make_room(guard: Guard) -> None:
    from headgate.service.observe.stream import WATCHERS

    with ExitStack() as stack:
        assert {stack.enter_context(events(guard)).status for _ in range(WATCHERS)} == {200}
        with events(guard) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert json.loads(refused.read())["type"].endswith("too-many-watchers")
    deadline = time.monotonic() + 60
    while True:
        with events(guard) as answer:
            if answer.status == 200:
                return
        assert time.monotonic() < deadline


def test_asking_for_the_head_of_the_stream_ends(guard: Guard) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guard.port, timeout=60)
    connection.request("HEAD", "/v1/events")
    with connection.getresponse() as answer:
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    connection.close()


def test_a_guard_that_is_told_to_stop_does_not_wait_for_those_who_watch(guard: Guard) -> None:
    with events(guard) as answer:
        assert next_event(answer)[0] == "hello"
        guard.stop()
