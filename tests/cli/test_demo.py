"""`headgate demo`, with real processes, judged by the upstream's own books: as shipped, and shortened."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import deque

import pytest

SHORT = ["--limit", "40", "--window", "2s", "--calls", "120", "--seconds", "6s", "--workers", "2", "--threads", "6"]


def demo(*options: str) -> str:
    command = [sys.executable, "-m", "headgate", "demo", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.soak  # figures: on a machine with other work on it they are that machine's
@pytest.mark.timeout(1200)
def test_as_shipped_it_ends_within_two_minutes_with_97_percent_and_no_429() -> None:
    begun = time.monotonic()
    found = json.loads(demo("--json"))
    assert time.monotonic() - begun < 120
    limit, per = found["limit"], found["per"]
    rows = {row["run"]: row for row in found["rows"]}
    assert list(rows) == ["uncoordinated", "headgate"]
    assert (limit, rows["uncoordinated"]["refused"] > 0) == (200, True)
    ours = rows["headgate"]
    assert (ours["accepted"], ours["refused"], ours["refused_at"]) == (600, 0, [])
    # The figure of the table, and the same from the upstream's list of every acceptance: 600 calls are two windows from
    # the first to the last, and never more than 200 came in any of them.
    times = ours["accepted_at"]
    assert len(times) == 600
    assert ours["utilisation"] == pytest.approx(min(1.0, 2 * per / (times[-1] - times[0])), abs=0.001)
    assert 0.97 <= ours["utilisation"] <= 1.0
    assert most_in_any(per, times) <= limit


#: In real time: the upstream counts by its own clock.
WITHIN_ITS_SLACK = pytest.mark.timing(
    "a call that a busy machine delays by more than the slack of 100 ms may be refused"
)


@pytest.mark.slow
@WITHIN_ITS_SLACK
def test_all_of_the_work_is_done_and_the_upstream_refuses_nothing() -> None:
    found = json.loads(demo("--json", *SHORT))
    rows = {row["run"]: row for row in found["rows"]}
    assert list(rows) == ["uncoordinated", "headgate"]
    ours = rows["headgate"]
    assert (ours["accepted"], ours["refused"], len(ours["accepted_at"])) == (120, 0, 120)
    assert most_in_any(found["per"], ours["accepted_at"]) <= found["limit"]


def most_in_any(per: float, times: list[float]) -> int:
    """The largest number of acceptances in any window of that length."""
    recent: deque[float] = deque()
    most = 0
    for at in times:
        recent.append(at)
        while recent[0] <= at - per:
            recent.popleft()
        most = max(most, len(recent))
    return most


@pytest.mark.slow
@WITHIN_ITS_SLACK
def test_it_ends_with_a_table_where_there_is_no_terminal() -> None:
    text = demo(*SHORT)
    assert "\x1b" not in text
    assert re.search(r"^ +done +refused \(429\) +utilisation +seconds$", text, flags=re.MULTILINE)
    assert re.search(r"^headgate +120 +0 +\d+\.\d% +\d+\.\d$", text, flags=re.MULTILINE)
    assert re.search(r"^uncoordinated +\d+", text, flags=re.MULTILINE)
