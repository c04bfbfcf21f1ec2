"""`headgate acquire GATE -- CMD`: a program under a permit, in real processes, with what can happen to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.stores import open_store
from tests.support.waiting import until

CONFIG = """
store = "sqlite:///{folder}/state.db"

[gates.slots]
limits = [
  {{ concurrency = 1, name = "in_flight", lease = "2s" }},
  {{ window = 100, per = "1h", name = "rpm" }},
]
"""
PYTHON = sys.executable
#: Says on standard output that it runs, and then waits to be told to stop by the end of its input.
STAYS = "import sys; print('running', flush=True); sys.stdin.read()"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[headgate.Gate]:
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path))
    loaded = headgate.load(tmp_path / "headgate.toml")
    yield loaded["slots"]
    open_store(loaded.config.store).close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `headgate acquire slots OPTIONS -- COMMAND` in a process of its own, which ends with the test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(command: list[str], *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [PYTHON, "-m", "headgate", "acquire", "slots", *options, "--", *command],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # No terminal: a Ctrl-C of whoever runs the tests is not what is tested here.
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def finish(process: subprocess.Popen[str], given: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(given, timeout=120)
    return process.returncode, out, err


def running(process: subprocess.Popen[str]) -> None:
    """Wait until the program under the permit says that it runs."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "running\n", process.communicate()


def free(gate: headgate.Gate) -> bool:
    usage = gate.usage()
    return usage["in_flight"].used == 0 and usage.waiting == 0


def test_input_output_and_the_exit_code_are_the_programs_own(gate: Any, start: Any) -> None:
    program = "import sys; t = sys.stdin.read(); print(t.upper()); print('oh', file=sys.stderr); sys.exit(37)"
    assert finish(start([PYTHON, "-c", program]), "hello") == (37, "HELLO\n", "oh\n")
    assert free(gate)
    assert gate.usage()["rpm"].used == 1


def test_the_program_holds_the_slot_while_it_runs_under_a_name(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", STAYS], "--holder", "chunk_001.pdf")
    running(process)
    assert [holder.holder for holder in gate.holders()] == ["chunk_001.pdf"]
    assert finish(process) == (0, "", "")
    assert free(gate)
    process = start([PYTHON, "-c", STAYS])
    running(process)
    [holder] = gate.holders()
    assert holder.holder == f"{os.path.basename(PYTHON)} {process.pid}"
    finish(process)


def test_a_lease_is_renewed_for_as_long_as_the_program_runs(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", STAYS], "--lease", "2s")
    running(process)
    begun = time.monotonic()
    while time.monotonic() < begun + 3:
        assert gate.usage()["in_flight"].used == 1
        time.sleep(0.02)
    assert finish(process)[0] == 0
    assert free(gate)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_that_is_killed_leaves_no_slot_and_ends_with_128_and_the_signal(
    gate: Any, start: Any, number: int
) -> None:
    program = (
        f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {int(number)})"
    )
    code, out, err = finish(start([PYTHON, "-c", program]))
    assert (code, out, err) == (128 + number, "", "")
    assert free(gate)
    assert gate.usage()["rpm"].used == 1  # the upstream may have seen it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_handed_on_to_the_program(gate: Any, start: Any, number: int) -> None:
    program = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        "print('running', flush=True)\n"
        "signal.pause()"
    )
    process = start([PYTHON, "-c", program])
    running(process)
    process.send_signal(number)
    assert finish(process)[0] == 5
    assert free(gate)


IGNORES = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('running', flush=True); sys.stdin.read()"
)


def test_a_program_that_ignores_sigterm_keeps_its_slot_until_it_ends(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", IGNORES])
    running(process)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert gate.usage()["in_flight"].used == 1
    assert finish(process)[0] == 0
    assert free(gate)


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_that_was_given(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", IGNORES], "--kill-after", "200ms")
    running(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGKILL
    assert free(gate)


def test_killed_itself_its_slot_comes_back_when_the_lease_expires(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", STAYS], "--lease", "1s")
    running(process)
    process.kill()
    process.wait()
    assert gate.usage()["in_flight"].used == 1
    gate.acquire(timeout=60).release()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_waits_takes_it_out_of_the_line(gate: Any, start: Any, number: int) -> None:
    held = gate.acquire()
    process = start([PYTHON, "-c", "print('ran')"])
    until(lambda: gate.usage().waiting == 1)
    process.send_signal(number)
    assert finish(process) == (128 + number, "", "")
    until(lambda: gate.usage().waiting == 0)
    held.release()
    assert free(gate)
    assert gate.usage()["rpm"].used == 1  # the one held here


def test_it_waits_for_its_turn_and_goes_when_the_slot_is_free(gate: Any, start: Any) -> None:
    held = gate.acquire()
    process = start([PYTHON, "-c", "print('ran')"])
    until(lambda: gate.usage().waiting == 1)
    held.release()
    assert finish(process) == (0, "ran\n", "")
    assert free(gate)


def test_denied_ends_with_75_says_what_blocks_and_charges_nothing(gate: Any, start: Any) -> None:
    with gate.acquire():
        for timeout in ("0", "200ms"):
            code, out, err = finish(start([PYTHON, "-c", "print('ran')"], "--timeout", timeout))
            assert (code, out) == (75, "")
            assert "limit 'in_flight'" in err
            assert len(err.splitlines()) == 1
        assert gate.usage()["rpm"].used == 1


def test_a_program_that_cannot_be_started_is_told_at_once_and_charged_nothing(
    gate: Any, start: Any, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\x7fELF and then nothing that makes sense")
    (tmp_path / "binary").chmod(0o755)
    held = gate.acquire()  # without a slot to be had: it does not wait to find out
    for command, expected in (("no-such-program", 127), ("./no-such-program", 127), ("./plain", 126)):
        code, out, err = finish(start([command]))
        assert (code, out, len(err.splitlines())) == (expected, "", 1), err
        assert command in err
    held.release("unsent")
    for command, expected in (("./broken", 127), ("./binary", 126)):
        code, out, err = finish(start([command]))
        assert (code, out, len(err.splitlines())) == (expected, "", 1), err
    assert free(gate)
    assert gate.usage()["rpm"].used == 0


def test_a_slot_that_was_taken_away_is_told_and_the_program_goes_on(gate: Any, start: Any) -> None:
    process = start([PYTHON, "-c", STAYS])
    running(process)
    [holder] = gate.holders()
    assert gate.release(holder.id) is True
    # The next renewal finds out, while the program still runs.
    assert "ended before its holder let go" in process.stderr.readline()
    assert process.poll() is None
    assert finish(process)[0] == 0


def test_many_at_once_never_run_more_than_the_limit(gate: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import os, sys, time\n"
        "line = os.open(sys.argv[1], os.O_APPEND | os.O_CREAT | os.O_WRONLY)\n"
        "os.write(line, b'+'); time.sleep(0.02); os.write(line, b'-')"
    )
    command = [PYTHON, "-m", "headgate", "acquire", "slots", "--", PYTHON, "-c", program, str(log)]
    processes = [subprocess.Popen(command, cwd=tmp_path) for _ in range(6)]
    assert [process.wait(50) for process in processes] == [0] * 6
    assert log.read_text() == "+-" * 6
    assert free(gate)


# --- the program and its permit -----------------------------------------------------------------------------------------


def test_the_program_has_the_id_of_its_permit(gate: Any, start: Any) -> None:
    script = "import os, sys; print(os.environ['HEADGATE_PERMIT'], flush=True); sys.stdin.read()"
    process = start([PYTHON, "-c", script])
    told = process.stdout.readline().strip()
    assert [holder.id for holder in gate.holders()] == [told]
    process.communicate("", timeout=60)
    assert process.returncode == 0


def test_an_exit_code_that_says_so_ends_the_permit_as_rate_limited(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(
        f'store = "sqlite:///{tmp_path}/state.db"\n[gates.gemini]\n'
        "limits = [{ concurrency = 20, name = 'slots', adaptive = { start = 8, decrease = 2 } }]\n"
    )
    gates = headgate.load(tmp_path / "headgate.toml")
    for code, wanted in (("3", 8), ("29", 6), ("0", 6)):
        command = [PYTHON, "-m", "headgate", "acquire", "gemini", "--rate-limited-exit", "29", "--"]
        done = subprocess.run([*command, PYTHON, "-c", f"raise SystemExit({code})"], cwd=tmp_path, check=False)
        assert done.returncode == int(code)  # its own, whatever it means
        assert gates["gemini"].usage()["slots"].limit == wanted
    gates.close()


def test_a_cost_that_can_never_fit_ends_with_another_code_than_a_time_out(gate: Any, start: Any) -> None:
    never = start([PYTHON, "-c", ""], "--cost", "101")
    assert never.wait(60) == 65
    assert "can never fit" in never.stderr.read()
    with gate.acquire():
        assert start([PYTHON, "-c", ""], "--timeout", "0").wait(60) == 75
