"""The dashboard of a guard with many gates, keys, waiters and holders; and what it remembers."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Gate
from tests.support import ROOT
from tests.support.browser import Guard, running
from tests.support.dashboard import SOON, expect, row

GATES = 40

MANY = "store = 'sqlite:///gates.db'\n" + "".join(
    f"[gates.gate-{number:02d}]\nlimits = [{{ concurrency = 4, name = 'slots', lease = '1h' }}, "
    f"{{ window = 600, per = '1m', name = 'rpm' }}]\n"
    for number in range(GATES)
)
MANY += (
    "[gates.api]\nlimits = [{ window = 10, per = '1h', name = 'hourly', by = 'org' }, "
    "{ concurrency = 300, name = 'slots', lease = '1h' }]\n[serve]\naudit = 'audit.jsonl'\n"
)


@pytest.fixture
def many(tmp_path: Path) -> Any:
    with running(tmp_path, MANY) as guard:
        yield guard


def opened(watched: Any, guard: Guard, hash: str = "") -> Any:
    one = watched()
    one.page.goto(f"{guard.url}/{hash}")
    expect(one.page.locator("#state")).to_have_text("live", timeout=SOON)
    return one


def test_many_gates_begin_with_an_overview_in_which_those_in_trouble_are_first(many: Guard, watched: Any) -> None:
    many.ask("POST", "/v1/gates/gate-31/pause", {"reason": "an incident at the upstream"})
    held = [many.acquire("gate-17") for _ in range(4)]
    one = opened(watched, many)
    page = one.page
    expect(page.locator("#all-gates tr")).to_have_count(GATES + 1, timeout=SOON)
    expect(page.locator("#all-gates tr").first).to_contain_text("gate-31", timeout=SOON)
    expect(page.locator("#all-gates tr").first).to_contain_text(
        "paused until it is resumed: an incident at the upstream"
    )
    expect(page.locator("#all-gates tr").nth(1)).to_contain_text("gate-17", timeout=SOON)
    expect(page.locator("#all-gates tr").nth(1)).to_contain_text("slots is used up")
    assert page.title() == "All gates · Headgate"
    # The filter narrows both lists; keys reach everything.
    page.keyboard.press("/")
    page.keyboard.type("gate-1")
    expect(page.locator("#all-gates tr")).to_have_count(10)
    expect(page.locator("#gates li")).to_have_count(10)
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("gate-10")
    page.keyboard.press("Escape")
    page.locator("#name").click()
    page.keyboard.press("j")
    expect(page.locator("#name")).to_have_text("gate-11")
    page.keyboard.press("k")
    expect(page.locator("#name")).to_have_text("gate-10")
    page.keyboard.press("o")
    expect(page.locator("#overview")).to_be_visible()
    page.locator("#filter").fill("no such thing")
    expect(page.locator("#no-match")).to_be_visible()
    assert one.errors == []
    for permit in held:
        many.release(permit)


def test_the_list_scrolls_to_the_gate_of_the_address_and_an_unknown_one_is_said_to_be(
    many: Guard, watched: Any
) -> None:
    one = opened(watched, many, "#gate=gate-38")
    expect(one.page.locator("#name")).to_have_text("gate-38", timeout=SOON)
    expect(one.page.get_by_role("link", name=re.compile("^gate-38"))).to_be_in_viewport()
    one.page.goto(f"{many.url}/#gate=gate-99")
    expect(one.page.locator("#unknown-told")).to_contain_text(
        "This guard has no gate “gate-99”. It has 41", timeout=SOON
    )
    expect(one.page.locator("#gate")).to_be_hidden()
    one.page.get_by_role("link", name="All gates of this guard").click()
    expect(one.page.locator("#overview")).to_be_visible()


def test_a_key_has_a_page_with_its_limits_and_its_own_value(many: Guard, watched: Any) -> None:
    for _ in range(9):
        many.release(many.acquire("api", key={"org": "acme"}))
    many.acquire("api", key={"org": "zeta"})
    one = opened(watched, many, "#gate=api&key=org%3Dacme")
    page = one.page
    expect(page.locator("#key-title")).to_have_text("org=acme", timeout=SOON)
    expect(page.locator("#key-limits")).to_contain_text("9 / 10", timeout=SOON)
    expect(page.locator("#key-limits .name")).to_have_text("hourly")
    page.locator("#key-limits").get_by_role("button", name="Change acme").click()
    page.locator("dialog input[name=value]").fill("30")
    page.get_by_role("button", name="Change it").click()
    expect(page.locator("#key-limits")).to_contain_text("9 / 30", timeout=SOON)
    expect(page.locator("#changes")).to_contain_text("set hourly of acme to 30", timeout=SOON)
    # The search takes a value, or by=value; a row of the list leads there too.
    page.locator("#key-input").fill("zeta")
    page.keyboard.press("Enter")
    expect(page.locator("#key-title")).to_have_text("org=zeta", timeout=SOON)
    expect(page.locator("#key-limits")).to_contain_text("1 / 10", timeout=SOON)
    expect(page.locator("#key-told")).to_contain_text("1 in flight", timeout=SOON)
    assert one.errors == []
    page.locator("#key-input").fill("nobody=here")
    page.keyboard.press("Enter")
    expect(page.locator("#key-told")).to_contain_text("org", timeout=SOON)
    page.locator("#key-close").click()
    expect(page.locator("#key-page")).to_be_hidden()
    page.locator("#limits").get_by_role("link", name="Look at zeta").click()
    expect(page.locator("#key-title")).to_have_text("org=zeta")


def test_holders_can_be_searched_and_leafed_through_beyond_those_that_are_sent(many: Guard, watched: Any) -> None:
    gate = Gate("api", store=f"{many.url}?timeout=60s")
    permits = [gate.acquire(key={"org": f"org-{number}"}, holder=f"job {number:03d}") for number in range(160)]
    one = opened(watched, many, "#gate=api")
    page = one.page
    expect(page.locator("#holds-count")).to_contain_text("160", timeout=SOON)
    expect(page.locator("#holds tr")).to_have_count(50, timeout=SOON)
    page.locator("#holds-find").fill("job 159")
    expect(page.locator("#holds tr")).to_have_count(1, timeout=SOON)
    expect(page.locator("#holds")).to_contain_text("job 159")
    page.locator("#holds-find").fill("job")
    expect(page.locator("#holds-pages")).to_contain_text("1 to 50 of 160", timeout=SOON)
    for told in ("51 to 100 of 160", "101 to 150 of 160", "151 to 160 of 160"):
        page.locator("#holds-pages").get_by_role("button", name="Next").click()
        expect(page.locator("#holds-pages")).to_contain_text(told)
    expect(page.locator("#holds tr")).to_have_count(10)
    for permit in permits:
        permit.release()


def test_a_pause_may_have_no_end_and_the_page_says_who_changed_what(many: Guard, watched: Any, tmp_path: Path) -> None:
    one = opened(watched, many, "#gate=gate-05")
    page = one.page
    page.get_by_role("button", name="Pause…").click()
    page.get_by_label("Until I resume it").check()
    expect(page.locator("#ask-what")).to_contain_text("until somebody resumes it")
    page.get_by_label("Why").fill("the night shift asked for it")
    page.get_by_role("button", name="Pause it").click()
    expect(page.locator("#paused")).to_have_text(
        "Paused until somebody resumes it: the night shift asked for it", timeout=SOON
    )
    expect(page.locator("#changes")).to_contain_text(
        "paused it until it is resumed: the night shift asked for it", timeout=SOON
    )
    assert many.ask("GET", "/v1/gates/gate-05")["paused_for"] > 100 * 365 * 86_400
    [line] = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert (line["action"], line["seconds"], line["reason"]) == ("pause", None, "the night shift asked for it")
    # Another guard process on the same file still knows, and still shows the change.
    many.kill()
    expect(page.locator("#state")).to_have_text(re.compile(r"no answer .*; last seen \d\d:\d\d:\d\d"), timeout=SOON)
    many.start()
    expect(page.locator("#state")).to_have_text("live", timeout=4 * SOON)
    expect(page.locator("#paused")).to_be_visible()
    expect(page.locator("#changes")).to_contain_text("the night shift asked for it", timeout=SOON)
    page.get_by_role("button", name="Resume…").click()
    page.get_by_role("button", name="Resume it").click()
    expect(page.locator("#paused")).to_be_hidden(timeout=SOON)


def test_the_history_survives_a_restart_of_the_guard(many: Guard, watched: Any, tmp_path: Path) -> None:
    for _ in range(7):
        many.release(many.acquire("gate-00"))
    page = opened(watched, many, "#gate=gate-00").page
    expect(page.locator("#now-utilisation")).not_to_have_text("–", timeout=SOON)
    many.stop()
    lines = [json.loads(line) for line in (tmp_path / "gates.db-history.jsonl").read_text().splitlines()]
    assert sum(line["gates"]["gate-00"][0] for line in lines) == 7
    with (tmp_path / "gates.db-history.jsonl").open("a") as stream:
        stream.write('{"at": 1, "gates": {"gate-00": [1, 2')  # as a crash leaves it
    many.start()
    expect(page.locator("#state")).to_have_text("live", timeout=4 * SOON)
    told = page.evaluate("fetch('/v1/events').then(async (answer) => {"
        " const read = answer.body.getReader(); const text = new TextDecoder().decode((await read.read()).value);"
        " read.cancel();"
        " return text.split('\\n').find((line) => line.startsWith('data: ')).slice(6) })")  # fmt: skip
    minutes = json.loads(told)["minutes"]["gate-00"]
    assert sum(minute[1] for minute in minutes) == 7
    assert all(minute[0] > time.time() - 7200 for minute in minutes)
    page.get_by_role("button", name="6 h").click()
    page.get_by_role("button", name="Use and waiting time").click()
    expect(page.locator("#chart canvas")).to_be_visible()


def test_the_picture_of_many_gates_can_be_made(many: Guard, watched: Any, tmp_path: Path) -> None:
    target = ROOT / "docs" / "img" if os.environ.get("HEADGATE_SCREENSHOTS") else tmp_path
    many.ask("POST", "/v1/gates/gate-31/pause", {"reason": "an incident at the upstream"})
    for number, count in ((17, 4), (4, 3), (22, 2), (9, 1)):
        for _ in range(count):
            many.acquire(f"gate-{number:02d}")
    with many.waiting("gate-17", {"holder": "chunk_1.pdf"}, {"holder": "chunk_2.pdf"}):
        page = opened(watched, many).page
        page.set_viewport_size({"width": 1240, "height": 620})
        expect(page.locator("#all-gates tr").nth(1)).to_contain_text("2 wait", timeout=SOON)
        page.screenshot(path=target / "dashboard-overview.png")
        for holder in many.ask("GET", "/v1/gates/gate-17/holders")["holders"]:
            many.release(holder)
    assert 5_000 < (target / "dashboard-overview.png").stat().st_size < 200_000


def test_a_history_that_cannot_be_written_costs_nothing_else(tmp_path: Path, watched: Any) -> None:
    (tmp_path / "folder").mkdir()
    config = MANY.replace("[serve]", "[serve]\nhistory = 'folder'")
    with running(tmp_path, config) as guard:
        page = opened(watched, guard, "#gate=gate-00").page
        guard.release(guard.acquire("gate-00"))
        expect(row(page, "rpm").locator(".used")).to_have_text("1 / 600", timeout=SOON)
        guard.stop()
        assert "cannot be written" in guard.log()
