"""A browser, a guard and pages for the tests of the dashboard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import HOW_TO_GET_ONE, Guard, chromium, running
from tests.support.dashboard import CONFIG, Browser, Watched, sync_playwright


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


@pytest.fixture
def watched(browser: Browser) -> Iterator[Any]:
    made: list[Watched] = []

    def make(**traits: Any) -> Watched:
        made.append(Watched(browser, **traits))
        return made[-1]

    yield make
    for one in made:
        one.context.close()
