"""Images through the real google-genai, against the local Gemini: all of them, under both limits, and a sheet."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import InvalidInput
from headgate.cli.app import COMMANDS
from headgate.cli.images import images
from headgate.images import ImageRun, ImageSettings, Prompt, generate, read_prompts
from headgate.images.google import ImageModel, NoImage
from headgate.images.sheet import contact_sheet, plot
from headgate.simulate.upstreams import start

# google-genai derives from a class of aiohttp, where that is installed, which aiohttp does not like.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    with caplog.at_level(logging.INFO, logger="nanobanana"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "nanobanana"]


def made(folder: Path, url: str, count: int, **settings: Any) -> ImageRun:
    async def run() -> ImageRun:
        model = ImageModel("local", "gemini-2.5-flash-image", url)
        prompts = [Prompt(f"{number:02}.png", f"picture {number}") for number in range(count)]
        try:
            return await generate(
                prompts, folder, model, ImageSettings(**{"rpm": 1000, "gate": folder.name, **settings})
            )
        finally:
            await model.aclose()

    return asyncio.run(run())


# --- prompts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('["a fox", " an owl "]', [("001.png", "a fox"), ("002.png", "an owl")]),
        ('{"fox.png": "a fox", "owl": "an owl"}', [("fox.png", "a fox"), ("owl.png", "an owl")]),
        ('[{"prompt": "a fox", "filename": "fox.jpg"}, {"prompt": "x"}]', [("fox.jpg", "a fox"), ("002.png", "x")]),
    ],
)
def test_prompts_are_texts_objects_or_names(text: str, meant: list[tuple[str, str]]) -> None:
    assert read_prompts(text, "p.json") == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "p.json is no JSON"),
        ("3", "neither a list nor an object"),
        ("[]", "has no prompts"),
        ('["  "]', "entry 1 has no prompt"),
        ('[{"promt": "x"}]', "'promt', which is none of prompt, filename"),
        ('[{"prompt": "x", "name": "../../etc/passwd"}]', "is no name for a file"),
        ('{".hidden": "x"}', "is no name for a file"),
        ('[{"prompt": "x", "name": "A.png"}, {"prompt": "y", "name": "a.png"}]', "entries 1 and 2 are both called"),
        ('[{"prompt": "x", "name": "a", "output": "b"}]', "several names"),
        ("[7]", "neither a text nor an object"),
    ],
)
def test_a_file_of_prompts_that_makes_no_sense_is_refused_before_anything_is_called(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        read_prompts(text, "p.json")


# --- runs -----------------------------------------------------------------------------------------------------------


def test_every_image_is_made_under_both_limits_and_what_is_there_is_skipped(tmp_path: Path, lines: Any) -> None:
    with start("gemini", ["in_flight=4,slots", "requests=1000/1m"], delay=0.02, size=32) as upstream:
        run = made(tmp_path, upstream.url, 12, concurrent=4)
        assert (run.statistics.successful, run.statistics.rate_limited, run.complete) == (12, 0, True)
        assert upstream.books()["most_at_once"] <= 4
        (tmp_path / "05.png").unlink()
        again = made(tmp_path, upstream.url, 12, concurrent=4, skip_existing=True)
        assert (again.statistics.successful, again.statistics.skipped) == (1, 11)
        assert upstream.books()["accepted"] == 13
    assert "Batch complete: 12/12 successful, 0 failed, 0 skipped, 0 rate limited" in lines()
    assert "Skipped (exists): 04.png" in lines()
    assert (tmp_path / "05.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".*"))  # nothing half written


def test_a_capacity_below_the_limit_steps_it_down_and_every_image_is_made_all_the_same(
    tmp_path: Path, lines: Any
) -> None:
    with start("gemini", ["in_flight=3,slots"], delay=0.3, size=32) as upstream:
        run = made(tmp_path, upstream.url, 12, concurrent=6)
        refused = upstream.books()["refused"]
    assert run.statistics.successful == 12
    assert run.statistics.rate_limited == refused == len(run.refused_at) > 0
    assert max(limit for _, limit in run.limits) <= 6
    assert "Decreased concurrency: 6 -> 4" in lines()
    assert any(line.startswith("Rate limited: ") and line.endswith(", retry 1/5 in 2s") for line in lines())


def test_a_quota_of_the_day_fails_at_once_and_is_not_tried_again(tmp_path: Path, lines: Any) -> None:
    with start("gemini", ["requests=2/1d,calendar"], delay=0.0, size=32, tells_delay=False) as upstream:
        run = made(tmp_path, upstream.url, 6, concurrent=2)
        assert (upstream.books()["accepted"], upstream.books()["refused"]) == (2, 4)
    assert (run.statistics.successful, run.statistics.failed, run.statistics.retries) == (2, 4, 0)
    assert not run.complete
    assert any(line.startswith("Failed: ") and "exceeded your current quota" in line for line in lines())


def test_an_overloaded_model_is_tried_again_and_leaves_the_working_limit_alone(tmp_path: Path, lines: Any) -> None:
    with start("gemini", ["in_flight=9,slots"], delay=0.0, size=32) as upstream:
        upstream.inject(status=503, count=2, path="/v1", body={"error": {"code": 503, "status": "UNAVAILABLE"}})
        run = made(tmp_path, upstream.url, 4, concurrent=4)
    assert (run.statistics.successful, run.statistics.retries, run.statistics.rate_limited) == (4, 2, 0)
    assert [new for (_, old), (_, new) in zip(run.limits, run.limits[1:], strict=False) if new < old] == []
    assert any(line.startswith("Overloaded: ") for line in lines())


def test_a_delay_that_the_service_names_is_waited_for_by_all(tmp_path: Path) -> None:
    with start("gemini", ["requests=3/2s"], delay=0.0, size=32) as upstream:
        run = made(tmp_path, upstream.url, 9, concurrent=3)
        refused_at = upstream.books()["refused_at"]
    assert run.statistics.successful == 9
    assert len(refused_at) <= 3 * 4  # those that were under way at each refusal; none came during a pause


def test_an_answer_without_an_image_fails_with_what_was_said_instead(tmp_path: Path) -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "I cannot draw that."}]}, "finishReason": "STOP"}]}
    with start("gemini", ["requests=9/1m"], delay=0.0) as upstream:
        upstream.inject(status=200, count=1, path="/v1", body=body)
        run = made(tmp_path, upstream.url, 1)
    assert run.failed == [("00.png", "the model made no image: I cannot draw that.; finish reason STOP")]
    assert issubclass(NoImage, Exception)


@pytest.mark.parametrize("settings", [{"concurrent": 0}, {"rpm": -1}, {"rule": "cubic"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        ImageSettings(**settings).gate_for_run()


# --- the command line -----------------------------------------------------------------------------------------------


def test_the_command_makes_images_of_a_simulated_service_and_a_sheet(tmp_path: Path) -> None:
    assert COMMANDS["images"] == ("images", "images")
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps({"fox.png": "a <b>fox</b>", "owl.png": "an owl"}), encoding="utf-8")
    arguments = [str(prompts), "-o", str(tmp_path / "out"), "--simulate", "--call-time", "20ms", "--concurrent", "1"]
    found = CliRunner().invoke(images, arguments, env={"GOOGLE_API_KEY": ""})
    assert found.exit_code == 0, found.output
    assert "2/2 successful" in found.output
    assert "2 accepted, 0 refused" in found.output
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert 'src="fox.png"' in page
    assert "a &lt;b&gt;fox&lt;/b&gt;" in page
    assert "<svg" in page
    assert (tmp_path / "out" / "limit.svg").exists()
    told = CliRunner().invoke(images, [*arguments, "--skip-existing", "--json", "-q"])
    assert json.loads(told.stdout)["skipped"] == 2


def test_without_a_key_nothing_is_called(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text('["x"]', encoding="utf-8")
    found = CliRunner().invoke(images, [str(prompts), "-o", str(tmp_path / "out")], env={"GOOGLE_API_KEY": ""})
    assert found.exit_code == 2
    assert "no $GOOGLE_API_KEY" in found.output
    assert not (tmp_path / "out").exists()


def test_flags_win_over_the_environment(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text('["x"]', encoding="utf-8")
    env = {"MAX_CONCURRENT": "0", "RPM_LIMIT": "60"}
    wrong = CliRunner().invoke(images, [str(prompts), "-o", str(tmp_path / "out"), "--simulate"], env=env)
    assert wrong.exit_code == 2
    assert "MAX_CONCURRENT" in wrong.output or "--concurrent" in wrong.output
    arguments = [str(prompts), "-o", str(tmp_path / "out"), "--simulate", "--concurrent", "2", "--call-time", "10ms"]
    assert CliRunner().invoke(images, arguments, env=env).exit_code == 0


def test_the_plot_has_the_working_limit_and_what_was_made_and_refused() -> None:
    class Statistics:
        seconds = 3.0

        def __str__(self) -> str:
            return "1/2 successful"

    run = ImageRun(Statistics(), 20, [(0.0, 8.0), (1.0, 6.0), (3.0, 6.0)], [0.5], [1.0], [("b.png", "<no>")])  # type: ignore[arg-type]
    assert plot(run).count("<circle") == 1
    assert plot(run).count("<path") == 1
    page = contact_sheet("t", [Prompt("a.png", "x"), Prompt("b.png", "y")], ["a.png"], run)
    assert "&lt;no&gt;" in page
    assert 'src="b.png"' not in page
