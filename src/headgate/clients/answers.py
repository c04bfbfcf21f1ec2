"""What is kept of an answer while its body passes by, for `report` and for settling what it cost."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

#: The most bytes of a body that are kept to settle by. Of a longer one nothing is read, and the estimate stands.
KEPT = 16 * 2**20

#: The most bytes of a refusal that are read before the caller sees it: they say until when, and whether it is for good.
REFUSAL_KEPT = 65_536

#: Seconds after which no more of a refusal is read, so that a body that trickles does not hold the report up.
REFUSAL_READ_S = 2.0


class Answer:
    """An upstream's answer as `settle` functions see it: `status`, `headers` (names in small letters) and the body.

    `body` is the bytes as the upstream meant them, without their compression. `json()` is what a JSON body says, `events()`
    the JSON of each event of a `text/event-stream`, in order.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """The JSON value of the body; ValueError where it is none."""
        import json

        return json.loads(self.body)

    @property
    def is_event_stream(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    def events(self) -> Iterator[Any]:
        """The JSON values of the events of a stream, without data that is not JSON: `[DONE]`, or the rest of a cut one."""
        import json

        for event in self.body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                try:
                    yield json.loads(b"\n".join(lines))
                except ValueError:
                    continue

    def __repr__(self) -> str:
        return f"<Answer {self.status}, {len(self.body)} bytes>"


class KeptBody:
    """The bytes of a body that passed by, up to a number."""

    __slots__ = ("_decode", "_most", "_parts", "_size", "is_whole")

    def __init__(self, decode: Callable[[bytes], bytes], most: int = KEPT) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._most = most
        self._decode = decode
        #: Whether everything that passed by is here.
        self.is_whole = True

    def add(self, part: bytes) -> None:
        if not self.is_whole:
            return
        self._size += len(part)
        if self._size > self._most:
            self.is_whole = False
            self._parts.clear()
        else:
            self._parts.append(part)

    def bytes(self) -> bytes:
        """What is here, without its compression; as it came where it cannot be decompressed (a body that was cut)."""
        raw = b"".join(self._parts)
        try:
            return self._decode(raw)
        except Exception:  # whichever library it is of
            return raw
