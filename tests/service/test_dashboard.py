"""The dashboard, in a real Chromium on a real guard: it shows what there is, changes what one may, and breaks by nothing.

With HEADGATE_SCREENSHOTS set, the pictures of docs/how-to/read-the-dashboard.md are made anew.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headgate.service.dashboard import FILES, POLICY
from tests.support import ROOT
from tests.support.browser import HOW_TO_GET_ONE, Guard, chromium, new_token, running
from tests.support.servers import NoServer, Server

try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright
    from playwright.sync_api import Error as PlaywrightError
except ImportError:
    Browser = Page = Any  # type: ignore[assignment, misc]
    sync_playwright = None  # type: ignore[assignment]

pytestmark = pytest.mark.timeout(120)

DASHBOARD = ROOT / "src" / "headgate" / "service" / "dashboard"

CONFIG = """
store = "sqlite:///gates.db"

[gates.adobe]
limits = [
  { window = 190, per = "1m", name = "rpm" },
  { concurrency = 4, name = "in_flight", lease = "1h" },
]

[gates.api-deployment]
priorities = { live = 1.0, batch = 0.8 }
limits = [
  { concurrency = 2,  name = "org", by = "org", lease = "6h" },
  { concurrency = 10, name = "global", lease = "6h" },
]
"""

#: Milliseconds: a sample comes every second, and the machine may be busy.
SOON = 15_000

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None or sync_playwright is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(HOW_TO_GET_ONE)
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Guard]:
    with running(tmp_path, CONFIG) as guard:
        yield guard


class Watched:
    """A page, and all that went wrong on it."""

    def __init__(self, browser: Browser, **traits: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1400, "height": 900}} | traits))
        self.context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " (e) => console.error('POLICY ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(SOON)
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, guard: Guard, gate: str = "adobe") -> Page:
        self.page.goto(f"{guard.url}/#gate={gate}")
        self.live()
        return self.page

    def live(self) -> None:
        expect(self.page.locator("#state")).to_have_text("live", timeout=SOON)
        expect(self.page.locator("#name")).not_to_be_empty(timeout=SOON)


@pytest.fixture
def watched(browser: Browser) -> Iterator[Any]:
    made: list[Watched] = []

    def make(**traits: Any) -> Watched:
        made.append(Watched(browser, **traits))
        return made[-1]

    yield make
    for one in made:
        one.context.close()


def row(page: Page, name: str) -> Any:
    return page.locator("#limits tr").filter(has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$")))


def shows(page: Page, name: str, used: str) -> None:
    expect(row(page, name).locator(".used")).to_have_text(used, timeout=SOON)


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
    connection = http.client.HTTPConnection("127.0.0.1", guard.port, timeout=20)
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
        seen = [{told["at"]: told for _, told in (next_event(answer) for _ in range(4))} for answer in answers]
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
    deadline = time.monotonic() + 20
    while True:
        with events(guard) as answer:
            if answer.status == 200:
                return
        assert time.monotonic() < deadline


def test_asking_for_the_head_of_the_stream_ends(guard: Guard) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guard.port, timeout=5)
    connection.request("HEAD", "/v1/events")
    with connection.getresponse() as answer:
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    connection.close()


def test_a_guard_that_is_told_to_stop_does_not_wait_for_those_who_watch(guard: Guard) -> None:
    with events(guard) as answer:
        assert next_event(answer)[0] == "hello"
        begun = time.monotonic()
        guard.stop()
        assert time.monotonic() - begun < 8


# --- the page -----------------------------------------------------------------------------------------------------------


def test_it_loads_asks_nobody_else_and_breaks_no_policy(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.open(guard)
    assert page.title() == "adobe · Headgate"
    expect(page.locator("#chart canvas")).to_be_visible()
    expect(page.locator("nav a")).to_have_count(2)
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
    assert guard.ask("GET", "/v1/gates/adobe")["overrides"] == [{"limit": "in_flight", "key": None, "value": 6}]

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


# --- through trouble ----------------------------------------------------------------------------------------------------


def test_it_goes_on_by_itself_after_the_guard_was_killed_and_restarted(guard: Guard, watched: Any) -> None:
    guard.acquire("adobe", holder="survivor.pdf")
    one = watched()
    page = one.open(guard)
    shows(page, "in_flight", "1 / 4")
    guard.kill()
    expect(page.locator("#state")).to_have_text("no answer from the guard, trying again", timeout=SOON)
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
            shows(page, "rpm", "0 / 190")  # this server kept nothing
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
        expect(page.locator("main")).to_be_hidden()
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


# --- for everybody ------------------------------------------------------------------------------------------------------


def test_it_can_be_used_by_keyboard_alone_and_keeps_the_focus_through_samples(guard: Guard, watched: Any) -> None:
    for number in range(2):
        guard.acquire("adobe", holder=f"chunk_{number}.pdf")
    page = watched().open(guard)
    expect(page.locator("#holds tr")).to_have_count(2, timeout=SOON)

    def focused() -> str:
        found: str = page.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        )
        return found

    reached = []
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.append(focused())
        if reached[-1] == "Release chunk_1.pdf":
            break
    wanted = ["Skip to the gate", "Pause…", "Change rpm", "Change in_flight", "2 min", "Release chunk_0.pdf"]
    assert [name for name in reached if name in wanted] == wanted
    assert any(name.startswith("api-deployment") for name in reached)
    page.wait_for_timeout(2500)  # samples come and go
    assert focused() == "Release chunk_1.pdf"
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert focused() == "Cancel"
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert focused() == "Release chunk_1.pdf"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focused() == "Release it"
    page.keyboard.press("Enter")
    expect(page.locator("#holds .who")).to_have_text(["chunk_0.pdf"], timeout=SOON)
    assert focused() == "Release chunk_0.pdf"  # its row is gone: on to the next
    page.keyboard.press("Control+Home")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "gate"


NAMES = """() => [...document.querySelectorAll(
    'button, a, input, select, [role=meter], [role=img], [role=region], nav, section')]
  .filter((e) => e.checkVisibility())
  .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)
    || document.getElementById(e.getAttribute('aria-labelledby') || '')))
  .map((e) => e.outerHTML)"""

#: Of all text that is seen: the lowest contrast with what is behind it, and where.
CONTRAST = """() => {
  const rgba = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  let worst = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    let behind = e;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const a = light(rgba(getComputedStyle(e).color));
    const b = light(rgba(getComputedStyle(behind || document.body).backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 120)];
  }
  return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_name_and_text_stands_out(guard: Guard, watched: Any, scheme: str) -> None:
    for number in range(4):
        guard.acquire("adobe", holder=f"chunk_{number}.pdf")
    guard.ask("POST", "/v1/gates/adobe/pause", {"seconds": 300, "reason": "maintenance"})
    page = watched(color_scheme=scheme).open(guard)
    expect(page.locator("#holds tr")).to_have_count(4, timeout=SOON)
    assert page.evaluate(NAMES) == []
    assert page.evaluate(CONTRAST)[0] >= 4.5, page.evaluate(CONTRAST)
    page.get_by_role("button", name="Pause longer…").click()
    assert page.evaluate(NAMES) == []
    assert page.evaluate(CONTRAST)[0] >= 4.5, page.evaluate(CONTRAST)


def test_the_theme_follows_the_system_until_one_is_chosen(guard: Guard, watched: Any) -> None:
    one = watched(color_scheme="dark")
    page = one.open(guard)

    def darkness() -> bool:
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return max(map(int, re.findall(r"\d+", shade))) < 80

    assert darkness()
    page.emulate_media(color_scheme="light")
    assert not darkness()
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert darkness()
    page.reload()
    one.live()
    assert darkness()
    assert one.errors == []


@pytest.mark.parametrize("width", [320, 390, 768, 900, 1400])
def test_nothing_scrolls_sideways_at_any_width(guard: Guard, watched: Any, width: int) -> None:
    guard.acquire("api-deployment", holder="W" * 200, key={"org": "o" * 200}, priority="batch")
    page = watched(viewport={"width": width, "height": 800}).open(guard, "api-deployment")
    expect(page.locator("#holds tr")).to_have_count(1, timeout=SOON)
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(sideways) == 0
    page.get_by_role("button", name="Release WW").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate(sideways) == 0
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


# --- pictures for the documentation ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pictures_of_the_documentation_can_be_made(tmp_path: Path, watched: Any) -> None:
    target = ROOT / "docs" / "img" if os.environ.get("HEADGATE_SCREENSHOTS") else tmp_path
    config = CONFIG.replace("concurrency = 4,", "concurrency = 8,")
    with running(tmp_path, config) as guard:
        orgs = ["acme", "acme", "globex", "initech"]
        for number, org in enumerate(orgs):
            guard.acquire("api-deployment", key={"org": org}, holder=f"deploy-{number + 41}", priority="live")
        page = watched(viewport={"width": 1240, "height": 940}).open(guard)
        page.get_by_role("button", name="2 min").click()
        held = []
        for number in range(70):
            if len(held) == 8:
                guard.release(held.pop(0), "rate_limited" if number % 31 == 0 else "ok")
            held.append(guard.acquire("adobe", holder=f"chunk_{number + 1:03d}.pdf"))
            if number % 9 == 0:
                with pytest.raises(urllib.error.HTTPError, match="429"):
                    guard.acquire("api-deployment", key={"org": "acme"}, priority="batch")
            page.wait_for_timeout(150 if number % 20 < 12 else 500)
        late = [{"holder": f"chunk_{number:03d}.pdf"} for number in range(71, 75)]
        with guard.waiting("adobe", *late):
            expect(page.locator("#waits tr")).to_have_count(4, timeout=SOON)
            page.wait_for_timeout(2500)
            page.screenshot(path=target / "dashboard.png")
            page.get_by_role("button", name="Release chunk_063.pdf").click()
            page.wait_for_timeout(300)
            page.locator("dialog").screenshot(path=target / "dashboard-release.png")
            page.keyboard.press("Escape")
            page.set_viewport_size({"width": 390, "height": 844})
            page.emulate_media(color_scheme="dark")
            page.goto(f"{guard.url}/#gate=api-deployment")
            page.wait_for_timeout(1500)
            page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
            page.screenshot(path=target / "dashboard-phone.png")
            for permit in held:
                guard.release(permit)
    for name in ("dashboard", "dashboard-release", "dashboard-phone"):
        size = (target / f"{name}.png").stat().st_size
        assert 5_000 < size < 200_000, (name, size)
