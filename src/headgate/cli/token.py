"""`headgate token`: the tokens by which clients may use a guard."""

from __future__ import annotations

import os

import click

from . import params
from .app import Failed

DEFAULT = "tokens.toml"


@click.group()
def token() -> None:
    """Make, list and revoke the tokens of a guard."""


def _file(context: click.Context) -> str:
    """The file that the configuration names, else tokens.toml beside it."""
    file = params.file_of(context)
    return os.path.join(os.path.dirname(os.path.abspath(file)), _named(context) or DEFAULT)


def _named(context: click.Context) -> str | None:
    return params.load_gates(context).config.serve.tokens if os.path.exists(params.file_of(context)) else None


@token.command("new")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(["acquire", "observe", "configure"]),
    help="What it may be used for; once per scope.",
)
@click.pass_context
def new_token(context: click.Context, name: str, scopes: tuple[str, ...]) -> None:
    """Make a token, and print it once: only its hash is kept.

    A guard that runs takes it within a second.
    """
    from headgate.service.tokens import add_token

    path = _file(context)
    made = add_token(path, name, frozenset(scopes))
    click.echo(
        f"headgate: {name} may {', '.join(scopes)}; its hash is in {path}, the token is shown this once:", err=True
    )
    file = params.file_of(context)
    if os.path.exists(file) and _named(context) is None:
        click.echo(f'headgate: note: {file} names no tokens yet; add tokens = "{DEFAULT}" under [serve]', err=True)
    click.echo(made)


@token.command("list")
@params.json_option
@click.pass_context
def list_tokens(context: click.Context, as_json: bool) -> None:
    """List the names of the tokens and their scopes."""
    from headgate.service.tokens import SCOPES, read_tokens

    found = [
        {"name": bearer.name, "scopes": [scope for scope in SCOPES if scope in bearer.scopes]}
        for bearer in read_tokens(_file(context)).values()
    ]
    if as_json:
        params.print_json({"tokens": found})
        return
    for entry in found:
        click.echo(f"{entry['name']}: {', '.join(entry['scopes'])}")
    if not found:
        click.echo("there are no tokens")


@token.command("revoke")
@click.argument("name")
@click.pass_context
def revoke(context: click.Context, name: str) -> None:
    """Take a token back. A guard that runs refuses it within a second."""
    from headgate.service.tokens import revoke_token

    path = _file(context)
    if not revoke_token(path, name):
        raise Failed(f"there is no token {name!r} in {path}; `headgate token list` shows those that there are")
    click.echo(f"{name} is revoked")
