"""The dashboard when its guard is killed, its store is away, its names are hostile, or its token may little."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Guard, new_token, running
from tests.support.dashboard import CONFIG, HOSTILE, SOON, expect, shows
from tests.support.servers import NoServer, Server


def test_it_goes_on_by_itself_after_the_guard_was_killed_and_restarted(guard: Guard, watched: Any) -> None:
    guard.acquire("adobe", holder="survivor.pdf")
    one = watched()
    page = one.open(guard)
    shows(page, "in_flight", "1 / 4")
    guard.kill()
    expect(page.locator("#state")).to_contain_text("no answer from the guard, trying again; last seen", timeout=SOON)
    expect(page.locator("body")).to_have_class(re.compile("stale"))
    expect(page.locator("#holds .who")).to_have_text(["survivor.pdf"])  # what was last seen stays, and looks old
    guard.start()
    one.live()
    expect(page.locator("#holds .who")).to_have_text(["survivor.pdf"], timeout=SOON)
    guard.acquire("adobe", holder="after.pdf")
    shows(page, "in_flight", "2 / 4")
    assert [error for error in one.errors if "ERR_" not in error] == []  # the browser tells of the lost connection


def test_a_store_that_is_away_is_said_and_what_was_last_seen_stays(tmp_path: Path, watched: Any) -> None:
    try:
        server = Server()
    except NoServer as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    with server, running(tmp_path, CONFIG.replace("sqlite:///gates.db", server.url)) as guard:
        for number in range(4):
            guard.acquire("adobe", holder=f"chunk_{number}.pdf")
        one = watched()
        page = one.open(guard)
        with guard.waiting("adobe", {"holder": "late.pdf"}):
            expect(page.locator("#waits .who")).to_have_text(["late.pdf"], timeout=SOON)
            server.kill()
            expect(page.locator("#trouble")).to_contain_text("the last that was seen", timeout=SOON)
            expect(page.get_by_role("link", name="adobe")).to_contain_text("no answer")
            expect(page.locator("#holds .who")).to_have_count(4)
            page.reload()  # now nothing was ever seen
            one.live()
            expect(page.locator("#trouble")).to_be_visible()
            expect(page.locator("#limits tr")).to_have_count(0)
            server.start()
            expect(page.locator("#trouble")).to_be_hidden(timeout=SOON)
            shows(page, "in_flight", "0 / 4")  # this server kept nothing; its rates come back with time
        assert one.errors == []


def test_hostile_names_are_text(guard: Guard, watched: Any) -> None:
    guard.acquire("adobe", holder=HOSTILE)
    guard.acquire("adobe", holder="]]>\"'`${alert(1)}{{7*7}}")
    for number in range(2):
        guard.acquire("adobe", holder=f"&lt;{number}&gt;")
    one = watched()
    with guard.waiting("adobe", {"holder": HOSTILE + "!"}):
        page = one.open(guard)
        names = [HOSTILE, "]]>\"'`${alert(1)}{{7*7}}", "&lt;0&gt;", "&lt;1&gt;"]
        expect(page.locator("#holds .who")).to_have_text(names, timeout=SOON)
        expect(page.locator("#waits .who")).to_have_text([HOSTILE + "!"], timeout=SOON)
        page.get_by_role("button", name=f"Release {HOSTILE}").click()
        expect(page.locator("#ask-title")).to_have_text(f"Release the lease of {HOSTILE}")
        page.get_by_role("button", name="Release it").click()
        expect(page.locator("#toast")).to_have_text(f"The lease of {HOSTILE} is released.")
        assert page.locator("img, main script").count() == 0
        assert page.title() == "adobe · Headgate"
    page.goto(f"{guard.url}/#gate=<img src=x onerror=alert(1)>")
    one.live()
    expect(page.locator("#name")).to_have_text("adobe")
    assert one.errors == []


def test_tokens_decide_what_is_seen_and_what_can_be_changed(tmp_path: Path, watched: Any) -> None:
    config = CONFIG + '\n[serve]\ntokens = "tokens.toml"\n'
    (tmp_path / "headgate.toml").write_text(config, encoding="utf-8")
    tokens = {scope: new_token(tmp_path, scope, scope) for scope in ("acquire", "observe")}
    tokens["configure"] = new_token(tmp_path, "operator", "observe", "configure")
    with running(tmp_path, config) as guard:
        guard.token = tokens["acquire"]
        guard.acquire("adobe", holder="chunk_001.pdf")
        one = watched()
        page = one.page
        page.goto(guard.url)
        dialog = page.get_by_role("dialog", name="A token for this guard")
        expect(dialog).to_be_visible()
        for part in ("#gate", "#overview", "#unknown"):
            expect(page.locator(part)).to_be_hidden()
        for wrong, told in (("hg_wrong", "send a token of this guard"), (tokens["acquire"], "this needs observe")):
            dialog.get_by_label("Token").fill(wrong)
            dialog.get_by_role("button", name="Use it").click()
            expect(dialog.get_by_role("alert")).to_contain_text(told)
        dialog.get_by_label("Token").fill(tokens["observe"])
        dialog.get_by_role("button", name="Use it").click()
        one.live()
        shows(page, "in_flight", "1 / 4")
        for name in ("Change in_flight", "Pause…", "Release chunk_001.pdf"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        page.reload()
        one.live()  # kept while the tab is open
        page.get_by_role("button", name="Forget the token").click()
        dialog.get_by_label("Token").fill(tokens["configure"])
        dialog.get_by_role("button", name="Use it").click()
        one.live()
        page.get_by_role("button", name="Release chunk_001.pdf").click()
        page.get_by_role("button", name="Release it").click()
        shows(page, "in_flight", "0 / 4")
        assert all(token not in url for url in one.asked for token in tokens.values())
