"""`GET /v1/wakes?session=…`: server-sent events for the process behind an `http://` store: which of its tickets are called.

    event: ready              what is called from now on is told here; look once at what was called before
    event: wake
    data: [["5fd0-17", null], ["5fd0-18", 250000]]      called; or to look again after so many microseconds

A stream that has nothing to say says so every few seconds: who hears nothing for longer comes again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from json import dumps

from ..schema.shapes import Field
from .execute import store_server_of
from .read import check_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Any

    from ...kernel.model import Wake
    from ...stores.base import Store
    from ..app import Guard
    from ..web import Request

#: Seconds after which a stream without news says that it is there.
BREATH = 3.0

READY = b"event: ready\ndata: {}\n\n"
STILL_THERE = b": still there\n\n"


class Wakes:
    """The streams of one guard, by session. The latest stream of a session has it."""

    def __init__(self, stores: Iterable[Store]) -> None:
        # A store that cannot be told to answer for others polls anyway: its waiters learn it by their heartbeats.
        self._stores: list[Any] = [store for store in stores if store.capabilities.forwards_wakes]
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def stream(self, session: str) -> AsyncGenerator[bytes, None]:
        """What is written to one client, until it or the guard goes."""
        stream = _Stream(asyncio.get_running_loop())
        before, self._streams[session] = self._streams.get(session), stream
        for store in self._stores:
            await asyncio.to_thread(store.adopt, session, stream.tell)
        if before is not None:
            before.end()
        try:
            yield READY
            while not stream.over:
                news = await stream.news()
                yield b"event: wake\ndata: %s\n\n" % dumps(news).encode() if news else STILL_THERE
        finally:
            if self._streams.get(session) is stream:
                del self._streams[session]
                for store in self._stores:
                    store.disown(session)

    def end(self) -> None:
        """The guard goes: every stream ends, and its client looks for another guard."""
        for stream in list(self._streams.values()):
            stream.end()


class _Stream:
    """What one client is still to be told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news: list[tuple[str, int | None]] = []
        self._bell = asyncio.Event()
        self.over = False

    def tell(self, wake: Wake) -> None:
        """From any thread."""
        self._news.append((wake.ticket, wake.delay))
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._bell.set)

    def end(self) -> None:
        self.over = True
        self._bell.set()

    async def news(self) -> list[tuple[str, int | None]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(BREATH):
                await self._bell.wait()
        self._bell.clear()
        news, self._news = self._news, []
        return news


# --- the route ------------------------------------------------------------------------------------------------------

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # some proxies keep a stream to themselves until it ends, unless they are told
]


SESSION = Field(
    lambda name, value: None,  # the handler looks at it
    "The process whose wakes are wanted, as it named itself when it asked.",
    type="string",
    pattern="^[0-9a-z][0-9a-z-]{0,31}$",
)


class _Client:
    """One of those that a guard sends away when it goes down."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def send_away(self) -> None:
        self._task.cancel()


async def wakes(guard: Guard, request: Request) -> None:
    """`GET /v1/wakes`. Answers bit by bit, for as long as the client stays and the guard is up."""
    session = check_session(request.query().get("session"))
    streams: Wakes = guard.state.get("wakes") or guard.state.setdefault("wakes", Wakes(store_server_of(guard).stores()))
    loop = asyncio.get_running_loop()
    await request.send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    telling = loop.create_task(_tell(streams, session, request))
    leaving = loop.create_task(_left(request))
    client = _Client(telling)
    guard.waiting.add(client)
    try:
        if guard.closing:
            telling.cancel()
        await asyncio.wait((telling, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        guard.waiting.discard(client)
        for task in (telling, leaving):
            task.cancel()
        await asyncio.wait((telling, leaving))
    with suppress(OSError):
        await request.send({"type": "http.response.body", "body": b""})


async def _tell(streams: Wakes, session: str, request: Request) -> None:
    stream = streams.stream(session)
    try:
        async for part in stream:
            await request.send({"type": "http.response.body", "body": part, "more_body": True})
    finally:
        await stream.aclose()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
