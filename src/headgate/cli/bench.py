"""`headgate bench`: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

import headgate

from .app import Failed


def checkout() -> Path | None:
    """The checkout that this package is run from, or that the working directory is in."""
    here = Path(headgate.__file__).resolve().parents[2]
    for place in (here, *[Path.cwd(), *Path.cwd().parents]):
        if (place / "benchmarks" / "__main__.py").is_file() and (place / "src" / "headgate").is_dir():
            return place
    return None


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Measure Headgate against floors and peers, in a checkout.

    ARGUMENTS go to `python -m benchmarks`: names of benchmarks (demo, dynamodb, fleet, guard, kernel, peers, redis,
    sentinel-hub, sqlite), --quick, --write PAGE.
    The peers are a dependency group: `make bench` installs them.
    """
    place = checkout()
    if place is None:
        raise Failed(
            "the benchmarks need a checkout of the project, and are not part of the installed package: clone it, run "
            "`make bench` there (which also installs the peers to compare with), or run `headgate bench` inside it"
        )
    done = subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=place, check=False)
    context.exit(done.returncode)
