"""Daemon threads, and the end of the interpreter, at which every one of them stops where it is.

When Python ends, each thread but the last freezes as soon as it asks for the GIL: with the locks that it holds, and without
the answers that others wait for. What is destroyed then still calls us from the one thread that is left: a permit that is
released in `__del__`, a coroutine that was in `acquire`. That thread must start no thread (`Thread.start` waits for the new
one for ever), wait for none, and take no lock that a frozen one may hold; otherwise the process never ends.
"""

from __future__ import annotations

import threading
from sys import is_finalizing
from time import monotonic

from .errors import StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Seconds for which the end of a process may wait for a store, all that it leaves behind together.
LONGEST_END_S = 0.5

#: Whether the interpreter is ending: the thread that asks is the only one that still runs.
is_ending = is_finalizing


def start_daemon(name: str, target: Callable[..., object], *args: Any) -> threading.Thread | None:
    """A daemon thread that runs; None where the interpreter ends and there can be no more threads."""
    if is_ending():
        return None
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):  # from Python 3.12 on, in functions that run `atexit` too
            raise
        return None
    return thread


def at_end(place: str) -> StoreUnavailable:
    """The error of a command that comes when the interpreter is ending, and that was not sent."""
    return StoreUnavailable(
        f"{place}: the interpreter is ending, and no thread is left that could ask; what is held ends with its lease. "
        f"Release permits before that, with a `with` block or in a function that `atexit` runs",
        decided=False,
    )


def check_free(lock: Any, place: str) -> None:
    """While the interpreter is ending: raises where a thread that is frozen holds the lock of a store in this process,
    or where thousands of releases have taken as long as they may."""
    if is_late() or not lock.acquire(blocking=False):
        raise at_end(place)
    lock.release()


def is_late() -> bool:
    """While the interpreter is ending: whether that has taken LONGEST_END_S since this was first asked."""
    global _late_at
    if not _late_at:
        _late_at = monotonic() + LONGEST_END_S
    return monotonic() > _late_at


_late_at = 0.0
