"""The command line. One file per noun; `app.py` has the table of commands and the exit codes.

Needs click and rich, which the `cli` extra brings.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """What `headgate` runs. Ends the process with one of the documented exit codes."""
    import sys

    try:
        import click as click
        import rich as rich
    except ImportError:
        from ..extras import how_to_install

        sys.stderr.write(f"headgate: the command line needs click and rich: {how_to_install('cli')}\n")
        sys.exit(1)
    from .app import app

    app.main(args=None if arguments is None else list(arguments), prog_name="headgate")
