"""The table of commands, the exit codes, and how an error becomes one sentence."""

from __future__ import annotations

import codecs
import io
import logging
import os
import re
import sys
from importlib import import_module

import click

from headgate import (
    ConfigError,
    Denied,
    HeadgateError,
    InvalidInput,
    KindChanged,
    StoreFormatError,
    StoreUnavailable,
    __version__,
)
from headgate.errors import UnknownGate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

#: Command → (module beside this file, what it is called there). A new command is one file and one line.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "init"),
    "status": ("status", "status"),
    "top": ("top", "top"),
    "explain": ("explain", "explain"),
    "acquire": ("acquire", "acquire"),
    "limits": ("limits", "limits"),
    "leases": ("leases", "leases"),
    "waiters": ("waiters", "waiters"),
    "pause": ("pause", "pause"),
    "resume": ("pause", "resume"),
    "reset": ("reset", "reset"),
    "simulate": ("simulate", "simulate"),
    "plan": ("plan", "plan"),
    "batch": ("batch", "batch"),
    "bench": ("bench", "bench"),
    "doctor": ("doctor", "doctor"),
    "demo": ("demo", "demo"),
    "upstream": ("upstream", "upstream"),
    "worker": ("worker", "worker"),
    "images": ("images", "images"),
    "queue": ("queue", "queue"),
    "dlq": ("dlq", "dlq"),
    "serve": ("serve", "serve"),
    "token": ("token", "token"),
}

OK, FAILED, USAGE, NEVER, UNAVAILABLE, DENIED, CONFIG = 0, 1, 2, 65, 69, 75, 78
NOT_EXECUTABLE, NOT_FOUND, INTERRUPTED = 126, 127, 130

#: Every exit code and what it means. The reference page repeats it.
EXIT_CODES: dict[str, str] = {
    "0": "Done.",
    "1": "Not done, and the message says why: there was no such lease, a file is in the way, `doctor` found something.",
    "2": "A wrong argument or option: an unknown gate, limit, unit or key, a cost that makes no sense.",
    "65": "Denied for good: the ask can never fit, however long it waits (EX_DATAERR). Nothing was charged.",
    "69": "The store cannot be reached or cannot be used (EX_UNAVAILABLE).",
    "75": "Denied for now: the time-out ran out (EX_TEMPFAIL). Nothing was charged.",
    "78": "A configuration or scenario that is missing or not accepted (EX_CONFIG).",
    "126": "`acquire`: the program is there but cannot be executed.",
    "127": "`acquire`: there is no such program.",
    "128+n": "`acquire`: the program was killed by signal n. 130 also: ended by Ctrl-C, 143: by SIGTERM while waiting.",
    "any other": "`acquire`: the program's own exit code, passed through.",
}


class Failed(click.ClickException):
    """A failure with a sentence and an exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]


def code_of(error: HeadgateError) -> int:
    """The exit code of an error of the library."""
    if isinstance(error, Denied):
        return DENIED if error.retry_after is not None else NEVER
    if isinstance(error, StoreUnavailable | StoreFormatError):
        return UNAVAILABLE
    if isinstance(error, UnknownGate):
        return USAGE
    if isinstance(error, ConfigError | KindChanged):
        return CONFIG
    return USAGE if isinstance(error, InvalidInput) else FAILED


#: What the library says in Python, and how it is said here.
_SYNTAX = (
    (re.compile(r"\bcost=\{'([^']+)': ([^}]+)\}"), r"--cost \1=\2"),
    (re.compile(r"\bkey=\{'([^']+)': '([^']+)'\}"), r"--key \1=\2"),
    (re.compile(r"reset\(\) the gate \((`headgate reset [^`]+`)\)"), r"forget what the gate counts with \1"),
    (re.compile(r"its id \(permit\.id\)"), "its id (see `headgate leases list`)"),
    (re.compile(r"load\(path\) or \$HEADGATE_CONFIG"), "--config PATH or $HEADGATE_CONFIG"),
)


def in_own_syntax(message: str) -> str:
    """A message of the library with its hints as the command line takes them."""
    for python, here in _SYNTAX:
        message = python.sub(here, message)
    return message


class App(click.Group):
    """Loads a command when it is asked for, and turns every expected error into one sentence and an exit code."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name]
        command: click.Command = getattr(import_module(f"headgate.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            from headgate.config.toml_table import did_you_mean

            near = did_you_mean(name, COMMANDS)
            raise click.UsageError(f"there is no command {name!r}; {near}there are {', '.join(COMMANDS)}", context)
        return super().resolve_command(context, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        # Without a handler, logging would print the library's warnings beside the one message; `acquire` tells them itself.
        logging.getLogger("headgate").addHandler(_QUIET)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=SIMPLER)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help())
            code = OK
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else "headgate"
            _tell(f"{where}: {_sentence(error.format_message())} (see `{where} --help`)")
            code = error.exit_code
        except click.ClickException as error:
            _tell(f"headgate: {error.format_message()}")
            code = error.exit_code
        except click.Abort:
            code = INTERRUPTED
        except HeadgateError as error:
            _tell(f"headgate: {in_own_syntax(str(error))}")
            code = code_of(error)
        except UnicodeEncodeError as error:
            _tell(f"headgate: {error.object!r} is not text: it has bytes that are not UTF-8")
            code = USAGE
        except OSError as error:
            name = f"{error.filename}: " if error.filename else ""
            _tell(f"headgate: {name}{error.strerror or error}")
            code = FAILED
        sys.exit(code if isinstance(code, int) else OK)


_QUIET = logging.NullHandler()

#: Replacements for characters that a file or terminal without UTF-8 cannot show.
SIMPLE = {"·": "-", "…": "...", "×": "x", "→": "->", "–": "-", "−": "-", "✓": "ok", "✗": "WRONG", "•": "*", "─": "-"}
SIMPLER = "headgate-simpler"


def _simpler(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(SIMPLE.get(sign, "?") for sign in signs), error.end


codecs.register_error(SIMPLER, _simpler)


#: A message of more characters than this is an argument that was repeated in it.
LONGEST = 1000


def _tell(message: str) -> None:
    """Print one line on standard error. Control characters are escaped: messages repeat arguments as they were given."""
    line = " ".join(message.split())
    line = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - 200]} … {line[-200:]}"
    click.echo(line, err=True)


def _sentence(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".") if text[1:2].islower() else text.rstrip(".")


@click.command(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--config",
    metavar="PATH",
    help="The configuration file. Default: $HEADGATE_CONFIG, else headgate.toml in the working directory.",
)
@click.version_option(__version__, prog_name="headgate", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context, config: str | None) -> None:
    """Admission control for fleets of workers that share rate-limited services.

    Begin with `headgate demo` to see it, or with `headgate init` to make a gate of your own.
    """
    context.obj = config or os.environ.get("HEADGATE_CONFIG") or None
