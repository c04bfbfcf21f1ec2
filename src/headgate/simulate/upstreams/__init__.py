"""Real local servers that enforce their limits by themselves, on their own clock and books, knowing nothing of Headgate.

    from headgate.simulate.upstreams import start

    with start("window", policies=["requests=50/10s"]) as upstream:
        urllib.request.urlopen(upstream.url + "/work")
        upstream.books()["accepted"]

`start` serves in a thread of this process, `start_process` in a process of its own; `headgate upstream NAME` serves at the
command line. Each has `/` for people, `/_books` as JSON, and takes failures to inject at `/_faults`.
"""

from __future__ import annotations

from importlib import import_module

from ...errors import InvalidInput
from .frame import Fault, Option, Upstream, UpstreamRequest, UpstreamResponse
from .policies import UpstreamBooks, UpstreamPolicy, UpstreamRefusal, ideal_seconds, parse_policy
from .server import UpstreamProcess, UpstreamThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "UPSTREAMS",
    "Fault",
    "Option",
    "Upstream",
    "UpstreamBooks",
    "UpstreamPolicy",
    "UpstreamProcess",
    "UpstreamRefusal",
    "UpstreamRequest",
    "UpstreamResponse",
    "UpstreamThread",
    "ideal_seconds",
    "load",
    "parse_policy",
    "start",
    "start_process",
]

#: Name → (module beside this file, the class in it). A new simulator is one file and one line.
UPSTREAMS: dict[str, tuple[str, str]] = {
    "window": ("window", "WindowUpstream"),
    "sentinel-hub": ("sentinel_hub", "SentinelHub"),
    "llm": ("llm", "LlmUpstream"),
    "gemini": ("gemini", "Gemini"),
}


def load(name: str) -> type[Upstream]:
    """The class of an upstream by its name in `UPSTREAMS`."""
    if name not in UPSTREAMS:
        raise InvalidInput(f"there is no upstream {name!r}; there are {', '.join(UPSTREAMS)}")
    module, attribute = UPSTREAMS[name]
    found: type[Upstream] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def start(
    name: str,
    policies: Iterable[str | UpstreamPolicy] | None = None,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    delay: float | None = None,
    **settings: Any,
) -> UpstreamThread:
    """An upstream in a thread of this process; leaving the block stops it. Port 0 takes one that is free.

    `policies` are texts such as `"requests=50/10s"`; `delay` is how many seconds an accepted call takes; `settings` are the
    options of that simulator. Its clock shares this process's interpreter: to measure, take `start_process`.
    """
    return UpstreamThread(load(name)(policies, delay, **settings), port, host)


def start_process(
    name: str,
    policies: Iterable[str | UpstreamPolicy] | None = None,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    delay: float | None = None,
    **settings: Any,
) -> UpstreamProcess:
    """An upstream in a process of its own, running when this returns; leaving the block stops it."""
    load(name)(policies, delay, **settings)  # what is wrong with it is said here, not there
    texts = None if policies is None else [one if isinstance(one, str) else one.as_text() for one in policies]
    return UpstreamProcess(name, port, host, policies=texts, delay=delay, settings=settings)
