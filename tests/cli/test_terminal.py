"""What only a terminal shows: `top` redrawing until q, a question that is asked, Ctrl-C that reaches a program once."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate.stores import open_store

CONFIG = """
store = "sqlite:///{folder}/state.db"

[gates.adobe]
limits = [
  {{ window = 3, per = "1h", name = "rpm" }},
  {{ concurrency = 2, name = "in_flight" }},
]
"""


class Terminal:
    """A program in a terminal of its own, of a given size."""

    def __init__(self, folder: Path, arguments: list[str], columns: int = 80, lines: int = 24, shell: str = "") -> None:
        self.text = ""
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(lines))
            if shell:
                os.execv("/bin/sh", ["sh", "-c", shell])
            os.execv(sys.executable, [sys.executable, "-m", "headgate", *arguments])
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def see(self, pattern: str, seconds: float = 60.0) -> None:
        """Read until the pattern is seen."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"{pattern!r} is not in {self.text!r}"
            assert self._more(0.1), f"it ended without {pattern!r}: {self.text!r}"

    def type(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def ended(self) -> int:
        """Read to the end; the exit code."""
        while self._more(60.0):
            pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _more(self, seconds: float) -> bool:
        if select.select([self.end], [], [], seconds)[0]:
            try:
                data = os.read(self.end, 65536)
            except OSError:  # how Linux says that nobody has the other end any more
                return False
            self.text += data.decode(errors="replace")
            return bool(data)
        return True

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.end)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[headgate.Gate]:
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path))
    loaded = headgate.load(tmp_path / "headgate.toml")
    yield loaded["adobe"]
    open_store(loaded.config.store).close()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize(("keys", "columns"), [("q", 80), ("\x03", 140)])
def test_top_redraws_until_q_or_ctrl_c(
    gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path, keys: str, columns: int
) -> None:
    terminal = Terminal(tmp_path, ["top", "--every", "100ms"], columns)
    terminals.append(terminal)
    terminal.see(r"0/3")
    with gate.acquire(holder="chunk_001.pdf"):
        terminal.see(r"1/3")
        terminal.see(r"chunk_001\.pdf")
    terminal.type(keys)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("n\n", 1)])
def test_reset_asks_where_there_is_somebody_to_ask(
    gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path, answer: str, left: int
) -> None:
    gate.acquire().release()
    terminal = Terminal(tmp_path, ["reset", "adobe"])
    terminals.append(terminal)
    terminal.see(r"Forget all that counts on gate 'adobe'\?")
    terminal.type(answer)
    assert terminal.ended() == 0
    assert gate.usage()["rpm"].used == left


def test_ctrl_c_reaches_the_program_once(gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "print('running', flush=True)\n"
        "while not count: time.sleep(0.01)\n"
        "time.sleep(0.5); print(f'got {len(count)}', flush=True); sys.exit(9)"
    )
    terminal = Terminal(tmp_path, ["acquire", "adobe", "--", sys.executable, "-c", program])
    terminals.append(terminal)
    terminal.see("running")
    terminal.type("\x03")
    assert terminal.ended() == 9
    assert "got 1" in terminal.text
    assert gate.usage()["in_flight"].used == 0


def test_ctrl_c_while_it_waits_leaves_the_line(gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path) -> None:
    with gate.acquire(), gate.acquire():
        terminal = Terminal(tmp_path, ["acquire", "adobe", "--", "true"])
        terminals.append(terminal)
        terminal.see("waiting for gate")
        while not gate.usage().waiting:
            time.sleep(0.01)
        terminal.type("\x03")
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.text
        assert gate.usage().waiting == 0


@pytest.mark.parametrize(
    "shell",
    [
        "{acquire} & wait; echo over",  # of a script: the terminal is the script's, and everything's in it
        "set -m; {acquire} & wait; echo over",  # in the background
        "echo 1 2 3 | xargs -n1 -P3 {acquire}; echo over",
    ],
    ids=["script", "background", "xargs"],
)
def test_it_waits_in_silence_in_the_background_and_where_the_terminal_is_shared(
    gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path, shell: str
) -> None:
    acquire = f"{sys.executable} -m headgate acquire adobe --timeout 1s -- true"
    with gate.acquire(), gate.acquire():
        terminal = Terminal(tmp_path, [], shell=shell.format(acquire=acquire))
        terminals.append(terminal)
        terminal.see("over")
    assert "ran out of time in line" in terminal.text
    assert "waiting for gate" not in terminal.text
    assert "\x1b" not in terminal.text


def test_ctrl_c_ends_a_program_that_does_not_mind_and_frees_its_slot(
    gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path
) -> None:
    program = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "print('running', flush=True)\n"
        "time.sleep(60)"
    )
    terminal = Terminal(tmp_path, ["acquire", "adobe", "--", sys.executable, "-c", program])
    terminals.append(terminal)
    terminal.see("running")
    terminal.type("\x03")
    assert terminal.ended() == 128 + signal.SIGINT
    assert "Traceback" not in terminal.text
    assert gate.usage()["in_flight"].used == 0


@pytest.mark.parametrize("columns", [80, 140])
def test_a_frame_of_top_fits_the_terminal_and_is_redrawn_in_place(
    gate: headgate.Gate, terminals: list[Terminal], tmp_path: Path, columns: int
) -> None:
    with gate.acquire(holder="a name that is long " * 5):
        gate.pause(60, "a reason that is long " * 5)
        terminal = Terminal(tmp_path, ["top", "--every", "50ms"], columns, lines=12)
        terminals.append(terminal)
        terminal.see("paused for")
        for _ in range(3):
            terminal.see(r"(?s)\d\d:\d\d:\d\d  q quits.*\d\d:\d\d:\d\d  q quits")
            terminal.text = terminal.text[terminal.text.rindex("headgate ·") :]
        terminal.type("q")
        assert terminal.ended() == 0
    assert "\x1b[2J" not in terminal.text  # a screen that is cleared for every frame flickers
    frame = terminal.text.split("\x1b[H")[0]
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in frame.split("\r\n")]
    assert len(lines) <= 12
    assert max(map(len, lines)) <= columns


SCENARIO = """
strategies = ["headgate"]
[jobs]
count = 20000
[fleet]
workers = 100
[call]
network = "50ms"
work = "1s"
[upstream]
limits = [{ sliding = 200, per = "1m" }]
[gate]
limits = [{ window = 200, per = "1m", slack = "2s" }]
"""


def test_a_long_simulation_shows_how_far_it_is(terminals: list[Terminal], tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(SCENARIO)
    terminal = Terminal(tmp_path, ["simulate", "long.toml"], 100)
    terminals.append(terminal)
    terminal.see(r"headgate +.*[1-9][0-9,]*/20,000 calls", 30)
    terminal.type("\x03")
    assert terminal.ended() == 130
    assert "Traceback" not in terminal.text
