"""The page docs/reference/cli.md, made from the commands themselves.

`python -m headgate.cli.reference > docs/reference/cli.md` writes it. A test fails when the page is not what this prints.
"""

from __future__ import annotations

import click

from .app import EXIT_CODES, app

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 100

_HEAD = """\
# The command line

Made from `--help` by `python -m headgate.cli.reference > docs/reference/cli.md`; do not edit. How to work with it is in
[how-to/command-line.md](../how-to/command-line.md); the presets of `headgate init` are [explained here](presets.md).

Every reading command takes `--json`. Errors are one message on standard error, and nothing was charged. Nothing asks a
question where there is no terminal.

## Exit codes

| code | meaning |
|---|---|
"""


def commands(
    command: click.Command = app, path: tuple[str, ...] = ("headgate",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its path, groups before what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def help_of(path: tuple[str, ...], command: click.Command) -> str:
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}
    return click.Context(command, info_name=" ".join(path), **settings).get_help()  # type: ignore[arg-type]


def page() -> str:
    codes = "".join(f"| `{code}` | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    parts = [_HEAD + codes]
    parts += [f"## `{' '.join(path)}`\n\n```text\n{help_of(path, command)}\n```\n" for path, command in commands()]
    return "\n".join(parts)


if __name__ == "__main__":
    click.echo(page(), nl=False)
