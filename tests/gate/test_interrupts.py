"""Control-C at any moment leaves no ticket, promise or slot behind."""

from __future__ import annotations

import itertools
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from headgate import Bucket, Denied, Gate
from headgate.stores.memory import MemoryStore
from tests.support.gates import nothing_left, slots
from tests.support.waiting import until


def interrupt_when(true: Callable[[], bool]) -> None:
    """Send this process a Ctrl-C as soon as something is so."""

    def send() -> None:
        until(true)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def test_control_c_while_waiting_in_line_leaves_nothing_behind(store: str) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    interrupt_when(lambda: gate.usage().waiting == 1)
    with pytest.raises(KeyboardInterrupt):
        gate.acquire()
    assert gate.usage().waiting == 0
    held.release()
    nothing_left(gate)


def test_control_c_while_waiting_for_a_promise_gives_it_back(store: str) -> None:
    gate = Gate("p", [Bucket(1, per="1h", burst=1, slack=0, name="b")], store=store, waiting="promise")
    gate.acquire()
    before = gate.explain().goes_in
    interrupt_when(lambda: (gate.explain().goes_in or 0) > 5000)
    with pytest.raises(KeyboardInterrupt):
        gate.acquire()
    assert before is not None
    # Interrupted before its answer was there, an ask is cancelled in the background.
    until(lambda: gate.explain().goes_in == pytest.approx(before, abs=30))


def test_control_c_in_the_block_releases(store: str) -> None:
    gate = Gate("g", [slots(1)], store=store)

    def work() -> None:
        with gate.acquire():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        work()
    nothing_left(gate)


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line that this thread runs in some files: an interrupt that comes anywhere."""

    def __init__(self, n: int, *files: str) -> None:
        self.left = n
        self.files = files
        self.fired = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        # A bare `try:` is no instruction: no signal is ever delivered there.
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            if self.left == 0:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
            self.left -= 1
        return self


@pytest.mark.parametrize("ending", ["called", "timed out"])
def test_an_interrupt_at_any_line_of_waiting_leaves_no_ticket(ending: str) -> None:
    store = MemoryStore()
    for n in itertools.count():
        gate = Gate(f"g{n}", [slots(1, lease="1h")], store=store)
        held = gate.acquire()
        called = threading.Timer(0.01, held.release)
        if ending == "called":
            called.start()
        interrupt = InterruptAt(n, "gate/sync.py", "flows.py")
        waited = True
        tracing = sys.gettrace()
        sys.settrace(interrupt)
        try:
            permit = gate.acquire(timeout=60 if ending == "called" else 0.01, lease="300ms")
        except (KeyboardInterrupt, Denied):
            pass
        else:
            sys.settrace(tracing)
            waited = permit.waited > 0  # on a busy machine the slot may have been free before the ask
            assert permit.release()
            del permit
        finally:
            sys.settrace(tracing)
        held.release()
        until(lambda gate=gate: gate.usage().waiting == 0)
        # A grant that was on its way to its caller is nobody's, and comes back with its lease at the latest.
        gate.acquire(timeout=60).release()
        if waited and not interrupt.fired:
            break
    assert n > 20
