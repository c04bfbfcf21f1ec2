"""`headgate images`: images from a file of prompts, through google-genai under a gate."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import nullcontext
from pathlib import Path

import click

from headgate import duration
from headgate.images import ImageSettings, generate, read_prompts
from headgate.images.google import ImageModel
from headgate.images.sheet import contact_sheet, plot
from headgate.limits import RULES
from headgate.simulate import upstreams

from . import params
from .app import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

MODEL = "gemini-2.5-flash-image"


@click.command()
@click.argument("prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where they go.")
@click.option(
    "--concurrent",
    envvar="MAX_CONCURRENT",
    default=20,
    show_default=True,
    show_envvar=True,
    type=click.IntRange(1, 1000),
    help="At most so many calls at once; it starts with 8 of them, and adapts.",
)
@click.option(
    "--rpm",
    envvar="RPM_LIMIT",
    default=50,
    show_default=True,
    show_envvar=True,
    type=click.IntRange(1, 1_000_000),
    help="Calls in any minute.",
)
@click.option("--skip-existing", is_flag=True, help="Leave out images whose files are there.")
@click.option("--model", envvar="GEMINI_MODEL", default=MODEL, show_default=True, show_envvar=True, help="The model.")
@click.option(
    "--rule", type=click.Choice(list(RULES)), default="aimd", show_default=True, help="How the calls at once adapt."
)
@click.option("--store", default="memory://", show_default=True, help="Where the gate is, for several processes.")
@click.option("--simulate", is_flag=True, help="Call a local Gemini instead of the real one: no key, no bill.")
@click.option(
    "--capacity", default="20", show_default=True, help="Of the simulated one: calls at once, as in 20,6@10s,14@20s."
)
@click.option(
    "--call-time",
    default="4s",
    show_default=True,
    type=params.Duration(),
    help="Of the simulated one: a call's length.",
)
@click.option("-q", "--quiet", is_flag=True, help="No line per image, refusal and move.")
@params.json_option
def images(
    prompts: Path,
    output: Path,
    concurrent: int,
    rpm: int,
    skip_existing: bool,
    model: str,
    rule: str,
    store: str,
    simulate: bool,
    capacity: str,
    call_time: str | float,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make the images of PROMPTS, a JSON file, in a folder.

    PROMPTS is a list of texts, a list of objects with prompt and filename, or an object of names and prompts. The key is
    $GOOGLE_API_KEY. Calls that are refused (429) or find the model overloaded (503) are tried again up to five times; a
    delay that the service names holds for all processes that share the gate. The folder has index.html at the end, a
    contact sheet with a plot of the working limit. Exit code 1 where an image could not be made.
    """
    import os

    wanted = read_prompts(prompts.read_text(encoding="utf-8"), str(prompts))
    settings = ImageSettings(concurrent, rpm, rule, store, skip_existing=skip_existing)
    key = os.environ.get("GOOGLE_API_KEY", "")
    if simulate:
        policies = [f"requests={rpm}/1m", f"images={rpm}/1m", "requests=100000/1d,calendar", _slots(capacity)]
        seconds = duration.parse(call_time) / 1e6
        local: AbstractContextManager[Any] = upstreams.start_process("gemini", policies, delay=seconds)
        key = key or "local"
    else:
        local = nullcontext(None)
    if not key:
        raise click.UsageError("there is no $GOOGLE_API_KEY; set it, or add --simulate to try it without one")
    logger = logging.getLogger("nanobanana")
    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(logging.Formatter("%(message)s"))
    before = logger.level
    if not quiet:
        logger.addHandler(told)
        logger.setLevel(logging.INFO)
    try:
        with local as upstream:
            run = asyncio.run(_run(wanted, output, key, model, None if upstream is None else upstream.url, settings))
            books = None if upstream is None else upstream.books()
    finally:
        logger.removeHandler(told)
        logger.setLevel(before)
    made = [prompt.name for prompt in wanted if (output / prompt.name).exists()]
    (output / "limit.svg").write_text(plot(run), encoding="utf-8")
    (output / "index.html").write_text(contact_sheet(prompts.name, wanted, made, run), encoding="utf-8")
    _tell(run, output, books, as_json)
    if not run.complete:
        raise Failed("some images were not made", code=1)


def _slots(capacity: str) -> str:
    first, comma, later = capacity.partition(",")
    return f"in_flight={first},slots{comma}{later}"


async def _run(wanted: Any, output: Path, key: str, model: str, url: str | None, settings: ImageSettings) -> Any:
    opened = ImageModel(key, model, url)
    try:
        return await generate(wanted, output, opened, settings)
    finally:
        await opened.aclose()


def _tell(run: Any, output: Path, books: Any, as_json: bool) -> None:
    found = run.statistics
    if as_json:
        facts = ("total", "successful", "failed", "skipped", "rate_limited", "retries", "seconds", "utilisation")
        told = {name: getattr(found, name) for name in facts}
        told |= {"failures": dict(run.failed), "sheet": str(output / "index.html")}
        if books is not None:
            told["upstream"] = {name: books[name] for name in ("accepted", "refused", "most_at_once")}
        params.print_json(told)
        return
    click.echo(str(found))
    if books is not None:
        share = books["refused"] / max(1, books["accepted"] + books["refused"])
        click.echo(
            f"the simulated service: {books['accepted']:,} accepted, {books['refused']:,} refused ({share:.1%}), "
            f"{books['most_at_once']} at once at most"
        )
    click.echo(f"contact sheet: {output / 'index.html'}")
