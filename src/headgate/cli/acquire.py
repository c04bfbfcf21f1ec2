"""`headgate acquire GATE -- CMD…`: run any program under a permit."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from time import monotonic

import click

from headgate import HeadgateError, duration
from headgate.events import subscribe

from . import params
from .app import NOT_EXECUTABLE, NOT_FOUND, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any, TextIO

    from headgate import Gate, Permit
    from headgate.events import Event
    from headgate.kernel.model import OutcomeName

#: Signals that end a wait, and are forwarded to the program once it runs.
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
#: Of these, the ones that ask for an end.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@click.command()
@params.gate_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--timeout", type=params.Duration(zero=True), help="Wait at most so long; 0 does not wait. Default: for ever."
)
@params.cost_option
@params.key_option
@params.priority_option
@click.option("--holder", metavar="NAME", help="A name for people to see. Default: the program and its process id.")
@click.option("--lease", type=params.Duration(), help="Length of the slot's lease, renewed while the program runs.")
@click.option(
    "--kill-after", type=params.Duration(), help="Kill the program so long after a signal that asked it to end."
)
@click.option(
    "--rate-limited-exit",
    metavar="N",
    multiple=True,
    type=click.IntRange(1, 255),
    help="The program ends with N when the upstream has refused it: then the permit ends as rate_limited.",
)
@click.pass_context
def acquire(
    context: click.Context,
    gate: str,
    command: tuple[str, ...],
    timeout: str | float | None,
    cost: dict[str, float] | None,
    key: dict[str, str] | None,
    priority: str | None,
    holder: str | None,
    lease: str | float | None,
    kill_after: str | float | None,
    rate_limited_exit: tuple[int, ...],
) -> None:
    """Wait for a permit, run COMMAND under it, and release it whatever happens.

    Standard input and output, signals and the exit code are the program's own: `headgate acquire adobe -- curl -fsS URL`.
    The program has the permit's id in $HEADGATE_PERMIT. One that could not be started is charged nothing. Should this
    process be killed by SIGKILL, the slot comes back when its lease expires.
    """
    # Before anything is asked for: a misspelt program must not wait an hour to say so.
    if shutil.which(command[0]) is None:
        if os.path.exists(command[0]) and os.sep in command[0]:
            raise Failed(f"{command[0]}: it cannot be executed", NOT_EXECUTABLE)
        raise Failed(f"{command[0]}: there is no such program", NOT_FOUND)
    gates = params.load_gates(context)
    found = gates[gate]
    params.warn_if_unshared(gates.config[gate].store)
    ask: dict[str, Any] = {
        "cost": cost or 1,
        "key": key,
        "priority": priority,
        "timeout": timeout,
        "lease": lease,
        "holder": holder or f"{os.path.basename(command[0])[:100]} {os.getpid()}",
    }
    grace = None if kill_after is None else duration.parse(kill_after) / 1e6
    context.exit(run_under(found, ask, command, grace, rate_limited_exit))


def run_under(
    gate: Gate, ask: dict[str, Any], command: tuple[str, ...], grace: float | None, refused_codes: tuple[int, ...] = ()
) -> int:
    """Take a permit, run the program, release; returns the exit code to end with.

    `refused_codes` are those by which the program tells that the upstream has refused it.
    """
    # An id of our own: what is granted can be given back even if a signal comes between the grant and its assignment.
    id = f"run-{os.urandom(6).hex()}"
    permit: Permit | None = None
    refused = False
    outcome: OutcomeName = "unsent"
    with warnings_on_stderr(), Signals() as signals:
        try:
            with waiting(gate.name):
                permit = gate.acquire(**ask, id=id)
            signals.start_forwarding()
            code = run(command, signals, grace, permit.id)
            outcome = "ok" if code == 0 else "rate_limited" if code in refused_codes else "error"
            return code if code >= 0 else 128 - code
        except HeadgateError:
            refused = permit is None
            raise
        except FileNotFoundError as error:
            raise Failed(f"{command[0]}: {error.strerror}", NOT_FOUND) from None
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None
        finally:
            signals.start_forwarding()
            if permit is not None:
                permit.release(outcome)
            elif not refused:
                with suppress(HeadgateError):
                    gate.release(id, "unsent")


def run(command: tuple[str, ...], signals: Signals, grace: float | None, permit_id: str) -> int:
    """Run a program to its end, forwarding signals. Returns its exit code, or minus the signal that killed it."""
    environment = dict(os.environ)
    environment["HEADGATE_PERMIT"] = permit_id
    child = subprocess.Popen(command, env=environment)
    kill_at: float | None = None
    while child.poll() is None:
        for number in signals.wait(None if kill_at is None else kill_at - monotonic()):
            if number in FORWARDED and not _sent_by_the_terminal(number):
                child.send_signal(number)
            if number in ENDING and grace is not None and kill_at is None:
                kill_at = monotonic() + grace
        if kill_at is not None and monotonic() >= kill_at:
            child.kill()
            kill_at = None
            grace = None
    return child.returncode


def _sent_by_the_terminal(number: int) -> bool:
    """Whether the program has the signal already: Ctrl-C goes to every process in the terminal's foreground."""
    if number not in (signal.SIGINT, signal.SIGQUIT):
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


class Signals:
    """Signals end the process while it waits for a permit, and are queued for the program afterwards.

    They arrive through a pipe, so none is lost between two lines, whichever thread the system hands it to.
    """

    def __init__(self) -> None:
        self._ends = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._pipe_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            # What is ignored stays so, for us and for the program: nohup, and jobs in the background of a script.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._pipe_before)
        os.close(self._read)
        os.close(self._write)

    def start_forwarding(self) -> None:
        """From now on signals are queued for the program, and no longer end this process."""
        if self._ends:
            self._ends = False
            self._drain()

    def wait(self, seconds: float | None) -> bytes:
        """The numbers of the signals received; none when the time is over."""
        select.select([self._read], [], [], None if seconds is None else max(0.0, seconds))
        return self._drain()

    def _drain(self) -> bytes:
        with suppress(BlockingIOError):
            return os.read(self._read, 4096)
        return b""

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self._ends and number in ENDING:
            self._ends = False  # one is enough: a second must not interrupt the clean-up
            raise SystemExit(128 + number)


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Print on standard error when the permit's lease or the store's state is lost, or an ask passes an open gate."""

    def tell(event: Event) -> None:
        if event.kind in ("lease_lost", "passed_open", "state_lost"):
            click.echo(f"headgate: {event}", err=True)

    end = subscribe(tell)
    try:
        yield
    finally:
        end()


def has_terminal_to_itself(stream: TextIO) -> bool:
    """Whether this process was started by itself from a terminal, and is in the foreground there.

    A shell gives a process group to what is typed in it. One of many (of `xargs -P`, of a script or a Makefile) is in the
    group of another process, whose children all write to the same terminal; one in the background must not write at all.
    """
    if not stream.isatty() or os.getpgrp() != os.getpid():
        return False
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except OSError:  # not the terminal of this session
        return False


@contextmanager
def waiting(gate: str) -> Iterator[None]:
    """In a terminal that is this process's alone, say what is waited for."""
    if not has_terminal_to_itself(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"waiting for gate [bold]{gate}[/] (`headgate explain {gate}` tells why)"):
        yield
