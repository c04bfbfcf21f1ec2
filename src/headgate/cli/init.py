"""`headgate init`: a configuration to begin with."""

from __future__ import annotations

import os

import click

from . import params
from .app import Failed
from .presets import DEFAULT, PRESETS


@click.command()
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), help="Limits of a known service. Default: a gate to begin with."
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.pass_context
def init(context: click.Context, preset: str | None, force: bool) -> None:
    """Write headgate.toml (or what --config names), with comments."""
    chosen = DEFAULT if preset is None else PRESETS[preset]
    file = params.file_of(context)
    try:
        with open(file, "w" if force else "x", encoding="utf-8") as stream:
            stream.write(chosen.text)
    except FileExistsError:
        raise Failed(f"{file} is there already; --force writes over it, --config PATH takes another") from None
    except OSError as error:
        raise Failed(f"{file}: {error.strerror}") from None
    config = "" if file == "headgate.toml" else f"--config {file} "
    example = {
        "sentinel-hub": "--cost pu=1 ",
        "api-deployment": "--key org=acme ",
        "openai": "--cost tokens=700 ",
        "anthropic": "--cost input_tokens=500 --cost output_tokens=200 ",
        "gemini": "--cost tokens=700 ",
        "github": "--cost points=1 ",
    }.get(chosen.gate, "")
    click.echo(f"wrote {os.path.normpath(file)}: gate {chosen.gate!r}, {chosen.about}")
    click.echo(f"next: headgate {config}acquire {chosen.gate} {example}-- curl -fsS https://example.com")
    click.echo(f"      headgate {config}top")
