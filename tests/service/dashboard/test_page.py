"""The dashboard, in a real Chromium on a real guard: it shows what there is, and changes what one may."""

from __future__ import annotations

import json
import re
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Guard, running
from tests.support.dashboard import CONFIG, SOON, PlaywrightError, expect, row, shows

# --- the page -----------------------------------------------------------------------------------------------------------


def test_it_loads_asks_nobody_else_and_breaks_no_policy(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.open(guard)
    assert page.title() == "adobe · Headgate"
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator("nav li a")).to_have_count(2)
    page.get_by_role("link", name="api-deployment").click()
    expect(page.locator("#name")).to_have_text("api-deployment")
    page.get_by_role("button", name="2 min").click()
    page.wait_for_timeout(2500)
    assert one.errors == []
    assert {url.partition("/")[2].partition("/")[0] for url in one.asked} <= {"", guard.url.partition("//")[2]}
    assert all(url.startswith(guard.url) for url in one.asked)


def test_inline_code_would_be_stopped(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.open(guard)
    for code in (
        "document.body.innerHTML = '<p>'",
        "document.body.setAttribute('onclick', 'document.title = 1')",
        "document.head.append(Object.assign(document.createElement('script'), {src: 'https://elsewhere.test/x.js'}))",
    ):
        with pytest.raises(PlaywrightError, match="Trusted"):
            page.evaluate(code)
    page.evaluate(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: '* {color: red}'}))"
    )
    page.evaluate(
        "new Promise((done) => { addEventListener('securitypolicyviolation', (e) => e.violatedDirective === 'connect-src'"
        " && done()); fetch('https://elsewhere.test/').catch(() => 0) })"
    )
    assert any("POLICY style-src" in error for error in one.errors)
    assert page.title() == "adobe · Headgate"


def test_figures_move_without_a_reload(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.open(guard)
    shows(page, "in_flight", "0 / 4")
    held = [guard.acquire("adobe", holder=f"chunk_{number}.pdf") for number in range(4)]
    shows(page, "in_flight", "4 / 4")
    expect(row(page, "in_flight").locator(".share")).to_have_text("100 %")
    expect(page.locator("#holds .who")).to_have_text([f"chunk_{number}.pdf" for number in range(4)], timeout=SOON)
    with guard.waiting("adobe", {"holder": "late_1.pdf"}, {"holder": "late_2.pdf"}):
        expect(page.locator("#waits .who")).to_have_text(["late_1.pdf", "late_2.pdf"], timeout=SOON)
        expect(page.locator("#now-waiting")).to_have_text("2", timeout=SOON)
        expect(page.get_by_role("link", name="adobe")).to_contain_text("4 in flight · 2 waiting")
        for permit in held:
            guard.release(permit)
        expect(page.locator("#waits .who")).to_have_count(0, timeout=SOON)
        shows(page, "in_flight", "2 / 4")
    shows(page, "in_flight", "0 / 4")
    assert one.errors == []


def test_the_values_of_the_limiters_widget_are_there(guard: Guard, watched: Any) -> None:
    """In flight and rate, each with its utilisation and what is available; time left in the window; files in flight."""
    guard.acquire("adobe", holder="chunk_001.pdf")
    page = watched().open(guard)
    shows(page, "in_flight", "1 / 4")
    slots, rate = row(page, "in_flight").locator("td.number"), row(page, "rpm").locator("td.number")
    assert slots.all_text_contents()[1:4] == ["25 %", "3", "now"]
    shown = rate.all_text_contents()
    assert shown[:4] == ["1 / 190", "0 %", "189", "now"]
    assert re.fullmatch(r"\d+ s|1m0\ds", shown[4])
    expect(page.locator("#holds .who")).to_have_text(["chunk_001.pdf"])
    expect(page.get_by_role("meter", name="in_flight: used")).to_have_attribute("aria-valuetext", "1 of 4")


def test_limits_by_a_key_are_shown_for_those_who_hold_or_wait(guard: Guard, watched: Any) -> None:
    held = [guard.acquire("api-deployment", key={"org": "acme"}, holder="run-1", priority="live") for _ in range(2)]
    page = watched().open(guard, "api-deployment")
    shows(page, "acme", "2 / 2")
    shows(page, "global", "2 / 10")
    waiting = {"key": {"org": "acme"}, "priority": "batch", "holder": "run-2"}
    with guard.waiting("api-deployment", waiting):
        expect(page.locator("#waits tr")).to_have_count(1, timeout=SOON)
        assert page.locator("#waits tr td").all_text_contents()[:2] == ["acme", "batch"]
        expect(page.locator("#waits-by")).to_have_text(re.compile(r"^acme 1\s+\|\s+batch 1$"))
        for permit in held:
            guard.release(permit)


# --- changes ------------------------------------------------------------------------------------------------------------


def test_a_limit_is_changed_after_asking_and_given_back(guard: Guard, watched: Any) -> None:
    for _ in range(3):
        guard.acquire("adobe")
    one = watched()
    page = one.open(guard)
    shows(page, "in_flight", "3 / 4")
    page.get_by_role("button", name="Change in_flight").click()
    dialog = page.get_by_role("dialog", name="Change in_flight of adobe")
    value = dialog.get_by_label("New value")
    value.fill("2")
    expect(dialog.locator("#ask-what")).to_contain_text("Now 4, then 2.")
    expect(dialog.locator("#ask-what")).to_contain_text("Nobody is stopped; nobody new goes until 2 have ended")
    value.fill("1.5")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("whole number of slots")
    one.errors.clear()  # the browser itself tells of the 422
    dialog.get_by_role("button", name="Cancel").click()
    assert guard.ask("GET", "/v1/gates/adobe")["overrides"] == []

    page.get_by_role("button", name="Change in_flight").click()
    dialog.get_by_label("New value").fill("6")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#toast")).to_have_text("in_flight is now 6.")
    shows(page, "in_flight", "3 / 6")
    expect(row(page, "in_flight").locator(".kind")).to_contain_text("set to 6")
    assert guard.ask("GET", "/v1/gates/adobe")["overrides"] == [
        {"limit": "in_flight", "key": None, "value": 6, "reason": "", "expires_in": None, "tightened": False}
    ]

    page.get_by_role("button", name="Change in_flight").click()
    dialog.get_by_role("button", name="Back to 4").click()
    shows(page, "in_flight", "3 / 4")
    assert guard.ask("GET", "/v1/gates/adobe")["overrides"] == []
    assert one.errors == []


def test_a_limit_is_changed_for_one_key_alone(guard: Guard, watched: Any) -> None:
    guard.acquire("api-deployment", key={"org": "acme"})
    guard.acquire("api-deployment", key={"org": "globex"})
    page = watched().open(guard, "api-deployment")
    shows(page, "acme", "1 / 2")
    page.get_by_role("button", name="Change acme").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("For which org")).to_have_value("acme")
    dialog.get_by_label("New value").fill("5")
    dialog.get_by_role("button", name="Change it").click()
    shows(page, "acme", "1 / 5")
    shows(page, "globex", "1 / 2")
    page.get_by_role("button", name="Change acme").click()
    dialog.get_by_role("button", name="Back to what all have").click()
    shows(page, "acme", "1 / 2")


def test_a_gate_is_paused_with_a_reason_and_resumed(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.open(guard)
    page.get_by_role("button", name="Pause…").click()
    dialog = page.get_by_role("dialog", name="Pause adobe")
    dialog.get_by_label("For how long").fill("5")
    dialog.get_by_label("Why").fill("<b>maintenance</b> at Adobe")
    expect(dialog.locator("#ask-what")).to_contain_text("Nobody is let in for 5m00s")
    dialog.get_by_role("button", name="Pause it").click()
    expect(page.locator("#paused")).to_contain_text("<b>maintenance</b> at Adobe", timeout=SOON)
    expect(page.get_by_role("link", name="adobe")).to_contain_text("paused")
    with pytest.raises(urllib.error.HTTPError, match="429"):
        guard.acquire("adobe")
    page.get_by_role("button", name="Resume…").click()
    expect(page.get_by_role("dialog").locator("#ask-what")).to_contain_text(
        "It was paused: <b>maintenance</b> at Adobe"
    )
    page.get_by_role("button", name="Resume it").click()
    expect(page.locator("#paused")).to_be_hidden(timeout=SOON)
    expect(page.get_by_role("button", name="Resume…")).to_be_hidden()
    guard.acquire("adobe")
    assert one.errors == []


def test_a_stuck_lease_is_released_after_asking_and_the_next_goes(guard: Guard, watched: Any) -> None:
    for number in range(4):
        guard.acquire("adobe", holder=f"stuck_{number}.pdf")
    one = watched()
    page = one.open(guard)
    with guard.waiting("adobe", {"holder": "next.pdf"}) as got:
        expect(page.locator("#waits tr")).to_have_count(1, timeout=SOON)
        page.get_by_role("button", name="Release stuck_2.pdf").click()
        dialog = page.get_by_role("dialog", name="Release the lease of stuck_2.pdf")
        expect(dialog.locator("#ask-what")).to_contain_text("the first of the 1 who wait takes it")
        expect(dialog.locator("#ask-what")).to_contain_text("The worker is not stopped")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        dialog.get_by_role("button", name="Cancel").click()
        assert len(guard.ask("GET", "/v1/gates/adobe/holders")["holders"]) == 4
        page.get_by_role("button", name="Release stuck_2.pdf").click()
        dialog.get_by_role("button", name="Release it").click()
        names = ["stuck_0.pdf", "stuck_1.pdf", "stuck_3.pdf", "next.pdf"]
        expect(page.locator("#holds .who")).to_have_text(names, timeout=SOON)
        assert got[0]["gate"] == "adobe"
    assert one.errors == []


def test_what_was_changed_by_hand_is_in_the_audit_log(tmp_path: Path, watched: Any) -> None:
    with running(tmp_path, CONFIG + '\n[serve]\naudit = "audit.log"\n') as guard:
        guard.acquire("adobe", holder="stuck.pdf")
        page = watched().open(guard)
        page.get_by_role("button", name="Release stuck.pdf").click()
        page.get_by_role("checkbox").check()
        page.get_by_role("button", name="Release it").click()
        shows(page, "in_flight", "0 / 4")
        shows(page, "rpm", "0 / 190")  # unsent: it was given back
        [line] = (tmp_path / "audit.log").read_text(encoding="utf-8").splitlines()
        told = json.loads(line)
        assert (told["action"], told["gate"], told["outcome"], told["released"]) == ("release", "adobe", "unsent", True)
