"""`headgate queue` and `headgate dlq`: what operators see and do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.stages import Pipeline
from headgate.stages.outcomes import Bury
from headgate.stages.queues.base import Ending
from tests.support.command_line import done, read, run

PROGRAM = """
from headgate.stages import Pipeline
pipeline = Pipeline("p", queues="sqlite:///{folder}/queues.db")
pipeline.stage("first")(print)
pipeline.stage("second")(print)
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A pipeline with two dead letters and three messages in its first stage."""
    (tmp_path / "queued.py").write_text(PROGRAM.format(folder=tmp_path), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("queued", None)
    import queued  # type: ignore[import-not-found]

    found: Pipeline = queued.pipeline
    for number, reason in enumerate(("poison", "failed")):
        found.put({"n": number}, id=f"dead-{number}")
        [delivery] = found["first"].queue.lease(1, 60_000_000)
        bury = Bury(reason, f"because of {reason}\nand more", delivery.history)
        found["first"].queue.settle([Ending(delivery, bury)])
    found.put({"n": 2}, {"n": 3}, {"n": 4})
    yield found
    found.close()
    sys.modules.pop("queued", None)


REF = "queued:pipeline"


def test_the_list_shows_every_stage_first_to_last(pipeline: Pipeline) -> None:
    told = read("queue", "list", REF)
    assert [stage["stage"] for stage in told["stages"]] == ["first", "second"]
    assert (told["stages"][0]["ready"], told["stages"][0]["dead"]) == (3, 2)
    assert "first" in done("queue", "list", REF)


def test_peek_shows_messages_and_takes_none(pipeline: Pipeline) -> None:
    told = read("queue", "peek", REF, "first", "--most", "2")
    assert [json.loads(message["body"])["n"] for message in told["messages"]] == [2, 3]
    assert pipeline.stats()["first"].ready == 3
    assert "there is no message" in done("queue", "peek", REF, "second")


def test_a_pause_holds_a_stage_until_it_is_resumed(pipeline: Pipeline) -> None:
    done("queue", "pause", REF, "first", "--reason", "deploy")
    assert pipeline["first"].queue.lease(1, 1) == []
    assert read("queue", "list", REF)["stages"][0]["paused"] == "deploy"
    assert "goes on" in done("queue", "resume", REF, "first")
    assert "was not paused" in done("queue", "resume", REF, "first")
    assert pipeline["first"].queue.lease(1, 1) != []


def test_a_drain_pauses_all_stages_and_says_when_something_is_still_in_work(pipeline: Pipeline) -> None:
    [delivery] = pipeline["first"].queue.lease(1, 600_000_000)
    late = run("queue", "drain", REF, "--timeout", "0")
    assert late.exit_code == 75
    assert "1 messages are still in work" in late.stderr
    pipeline["first"].queue.ack(delivery)  # type: ignore[attr-defined]
    assert "nothing is in work" in done("queue", "drain", REF)
    assert all(stats.paused for stats in pipeline.stats().values())


def test_a_purge_wants_to_be_meant(pipeline: Pipeline) -> None:
    refused = run("queue", "purge", REF, "first")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert pipeline.stats()["first"].ready == 3
    assert "3 messages are deleted" in done("queue", "purge", REF, "first", "--yes")
    assert pipeline.stats()["first"].dead == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["dead-0", "dead-1"]),
        (("--reason", "poison"), ["dead-0"]),
        (("--text", "because of failed"), ["dead-1"]),
        (("--older-than", "1h"), []),
        (("--stage", "second"), []),
        (("--most", "1"), ["dead-0"]),
    ],
)
def test_dead_letters_are_listed_by_reason_age_and_text(
    pipeline: Pipeline, options: tuple[str, ...], expected: list[str]
) -> None:
    assert [letter["id"] for letter in read("dlq", "list", REF, *options)["letters"]] == expected


def test_a_letter_is_shown_whole(pipeline: Pipeline) -> None:
    letter: Any = read("dlq", "show", REF, "first", "dead-1")
    assert (letter["reason"], letter["error"]) == ("failed", "because of failed\nand more")
    assert letter["buried_at"] > 1_600_000_000
    assert "because of failed" in done("dlq", "show", REF, "first", "dead-1")
    assert run("dlq", "show", REF, "first", "nobody").exit_code == 1


def test_letters_are_put_back_and_a_dry_run_changes_nothing(pipeline: Pipeline) -> None:
    assert "2 dead letters would be put back" in done("dlq", "redrive", REF, "first", "--dry-run")
    assert pipeline.stats()["first"].dead == 2
    assert "1 dead letters are messages again" in done("dlq", "redrive", REF, "first", "dead-0")
    assert "1 dead letters" in done("dlq", "redrive", REF, "first", "--rate", "0.001")
    stats = pipeline.stats()["first"]
    assert (stats.dead, stats.ready, stats.delayed) == (0, 5, 0)


def test_letters_that_are_put_back_at_a_rate_come_one_after_the_other(pipeline: Pipeline) -> None:
    done("dlq", "redrive", REF, "first", "--rate", "0.001")
    stats = pipeline.stats()["first"]
    assert (stats.ready, stats.delayed) == (4, 1)


def test_letters_are_dropped_when_that_is_meant(pipeline: Pipeline) -> None:
    assert run("dlq", "drop", REF, "first").exit_code == 2
    assert "1 dead letters would be deleted" in done("dlq", "drop", REF, "first", "--reason", "failed", "--dry-run")
    assert "1 dead letters are deleted" in done("dlq", "drop", REF, "first", "--reason", "failed", "--yes")
    assert [letter["id"] for letter in read("dlq", "list", REF)["letters"]] == ["dead-0"]


@pytest.mark.parametrize("reference", ["", ":", "..:x", "queued:nothing", "broken:pipeline", "none_such:x"])
@pytest.mark.parametrize("command", [("queue", "list"), ("dlq", "list"), ("queue", "drain")])
def test_a_reference_that_leads_nowhere_is_one_sentence(
    pipeline: Pipeline, tmp_path: Path, reference: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0", encoding="utf-8")
    result = run(*command, reference)
    assert result.exit_code in (2, 78)
    assert len(result.stderr.splitlines()) == 1


def test_an_unknown_stage_names_those_there_are(pipeline: Pipeline) -> None:
    result = run("queue", "peek", REF, "third")
    assert result.exit_code == 2
    assert "first, second" in result.stderr
