"""Where messages live, one file per kind of queue. A new kind is one file and one line in `SCHEMES`."""

from __future__ import annotations

from ...errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Queue

#: URL scheme → (module, the extra that brings its driver). The module has `open_url(url, name) -> Queue`.
SCHEMES: dict[str, tuple[str, str | None]] = {
    "memory:": ("headgate.stages.queues.memory", None),
    "sqlite:": ("headgate.stages.queues.sqlite", None),
}


def open_queue(url: str, name: str) -> Queue:
    """The queue of that name at a URL: `memory:`, `sqlite:///pipeline.db`.

    A relative path in it starts at the working directory. Queues of one file or one memory hand over in one operation.
    """
    from importlib import import_module

    if not isinstance(url, str):
        raise InvalidInput(f"queues are at a URL such as 'sqlite:///pipeline.db', not {url!r}")
    scheme = "".join(url.partition(":")[:2])
    if scheme not in SCHEMES:
        raise InvalidInput(f"there is no queue for {url!r}; a queue URL begins with one of {', '.join(SCHEMES)}")
    module, extra = SCHEMES[scheme]
    try:
        opener = import_module(module).open_url
    except ImportError as error:
        if extra is None:
            raise
        from ...extras import how_to_install

        raise InvalidInput(f"{scheme} needs a driver: {how_to_install(extra)} ({error})") from error
    queue: Queue = opener(url, checked_name(name))
    return queue


def checked_name(name: str) -> str:
    """A name that every kind of queue can have; raises InvalidInput for any other."""
    good = isinstance(name, str) and 0 < len(name) <= 70 and name.isascii()
    if not good or not all(sign.isalnum() or sign in "-_." for sign in name):
        raise InvalidInput(
            f"the name of a pipeline, stage or queue is 1 to 70 letters, digits, '-', '_' and '.', not {name!r}"
        )
    return name
