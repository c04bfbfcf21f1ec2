"""The reference at /docs, in a real Chromium: it can be read, and every route can be tried against the guard."""

from __future__ import annotations

from typing import Any

from tests.support.browser import Guard
from tests.support.dashboard import SOON, expect


def section(page: Any, route: str) -> Any:
    method, path = route.split(" ")
    return page.locator(f"section[data-method='{method}'][data-path='{path}']")


def test_a_route_can_be_tried_against_the_own_guard(guard: Guard, watched: Any) -> None:
    one = watched()
    page = one.page
    page.goto(f"{guard.url}/docs")
    acquire = section(page, "POST /v1/gates/{gate}/acquire")
    acquire.get_by_text("Try it").click()
    acquire.get_by_label("gate").fill("adobe")
    acquire.get_by_role("button", name="POST it").click()
    expect(acquire.locator("pre")).to_contain_text("200 OK", timeout=SOON)
    [holder] = guard.ask("GET", "/v1/gates/adobe/holders")["holders"]
    assert holder["holder"] == "me, trying it"
    release = section(page, "POST /v1/permits/{id}/release")
    release.get_by_text("Try it").click()
    release.get_by_label("id").fill(holder["id"])
    release.get_by_role("button", name="POST it").click()
    expect(release.locator("pre")).to_contain_text('"released": true', timeout=SOON)
    explain = section(page, "GET /v1/gates/{gate}/explain")
    explain.get_by_text("Try it").click()
    explain.get_by_label("gate", exact=True).fill("adobe")
    explain.get_by_label("?cost").fill("2")
    explain.get_by_role("button", name="GET it").click()
    expect(explain.locator("pre")).to_contain_text('"granted": true', timeout=SOON)
    assert one.errors == []
    acquire.get_by_label("gate").fill("<b>no such gate</b>")
    acquire.get_by_role("button", name="POST it").click()
    expect(acquire.locator("pre")).to_contain_text("problem", timeout=SOON)
    assert page.locator("section b").count() == 0
