"""The dashboard of a guard in a real Chromium: its pages, and what is seen on them."""

from __future__ import annotations

import re
from typing import Any

from tests.support.browser import Guard

try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright
    from playwright.sync_api import Error as PlaywrightError
except ImportError:
    Browser = Page = PlaywrightError = Any  # type: ignore[assignment, misc]
    expect = sync_playwright = None  # type: ignore[assignment]

__all__ = [
    *("CONFIG", "HOSTILE", "SOON", "Browser", "Page", "PlaywrightError", "Watched", "expect", "row", "shows"),
    "sync_playwright",
]


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


def row(page: Page, name: str) -> Any:
    return page.locator("#limits tr").filter(has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$")))


def shows(page: Page, name: str, used: str) -> None:
    expect(row(page, name).locator(".used")).to_have_text(used, timeout=SOON)
