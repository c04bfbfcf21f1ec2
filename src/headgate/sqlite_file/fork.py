"""What happens to open database files when their process forks or ends.

An open connection must not get into the child of a fork: SQLite would believe that the child has the parent's locks. So it
is closed before the fork, and parent and child each open their own when they need it.
"""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import suppress
from operator import methodcaller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class FileOwner(Protocol):
        """An object that has database files open."""

        def before_fork(self) -> None:
            """Close them, and let no thread open them until the fork is over."""

        def after_fork_in_parent(self) -> None:
            """Let threads open them again."""

        def after_fork_in_child(self) -> None:
            """Begin anew: without the parent's files, sockets, locks and threads."""

        def end(self) -> None:
            """At the end of the process: close them, but do not wait for long."""


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def register_for_fork_and_exit(owner: FileOwner) -> None:
    """Have the owner's methods called at forks and at the end of the process, for as long as it lives."""
    _owners.add(owner)


def _for_all(method: str) -> Callable[[], None]:
    call = methodcaller(method)

    def do() -> None:
        for owner in list(_owners):
            with suppress(Exception):  # one that fails must not keep the others from it
                call(owner)

    return do


os.register_at_fork(
    before=_for_all("before_fork"),
    after_in_parent=_for_all("after_fork_in_parent"),
    after_in_child=_for_all("after_fork_in_child"),
)
atexit.register(_for_all("end"))
