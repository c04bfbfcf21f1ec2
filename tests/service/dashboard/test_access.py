"""The dashboard for everybody: keyboard, names, contrast, themes, widths; and the pictures of the documentation.

With HEADGATE_SCREENSHOTS set, the pictures of docs/how-to/read-the-dashboard.md are made anew.
"""

from __future__ import annotations

import os
import re
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.browser import Guard, running
from tests.support.dashboard import CONFIG, SOON, expect

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
