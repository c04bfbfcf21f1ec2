"""Whether this process looks like one of many workers, for which limits in memory are limits of each one alone."""

from __future__ import annotations

import os
import sys

from ..events import emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..stores.base import Store

_forked = False
_told = False


def _after_fork() -> None:
    global _forked, _told
    _forked, _told = True, False


os.register_at_fork(after_in_child=_after_fork)


def sign_of_others() -> str | None:
    """What tells that there are others like this process, as the end of a sentence; None where nothing does."""
    modules = sys.modules
    if "celery" in modules and "worker" in sys.argv[1:]:
        return "it is a Celery worker"
    if "gunicorn.arbiter" in modules:
        return "gunicorn runs it"
    started = modules.get("multiprocessing.process")
    if started is not None and started.parent_process() is not None:
        return "multiprocessing started it"
    return "it was forked" if _forked else None


def tell_if_unshared(store: Store, gate: str) -> None:
    """Emit `unshared`, once in a process, for a gate whose limits are in memory where there seem to be other workers."""
    global _told
    if _told or not store.url.startswith("memory:"):
        return
    why = sign_of_others()
    if why is not None:
        _told = True
        emit("unshared", gate, why=why)
