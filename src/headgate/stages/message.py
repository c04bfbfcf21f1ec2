"""PURE. What a queue holds: messages, their history, deliveries and dead letters. Times are integer microseconds.

A body is a JSON object. It is checked against the schema of its stage when it is put and again when it is received; fields
that the schema does not name are kept.
"""

from __future__ import annotations

import json
import types
from dataclasses import dataclass, field, replace

from ..errors import HeadgateError, InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Body = Mapping[str, Any]

#: Characters that the id of a message has at most: what fits the deduplication id of every queue.
LONGEST_ID = 100

#: How the types of a schema are called in messages. JSON has no others.
_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class BadMessage(HeadgateError, ValueError):
    """A message that is not JSON, too large, or not as the schema of its stage says. `field` names the field, if one."""

    def __init__(self, problem: str, field: str | None = None) -> None:
        super().__init__(problem)
        self.field = field


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """What has happened to a message so far. A queue keeps it beside the body."""

    #: Failures of the upstream or of the handler; each costs an attempt.
    attempts: int = 0
    #: Refusals of the upstream since the last other outcome; they cost no attempt.
    refusals: int = 0
    #: Leases that ran out before an outcome was told: the worker died, or stopped renewing.
    deaths: int = 0
    #: How often it was leased.
    receives: int = 0
    #: When it was put, by the queue's clock.
    put_at_us: int = 0


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to put. `id` is given to recognise it a second time; an empty one is made by the queue."""

    body: str
    id: str = ""
    #: What it asks its gate for, as `lane_of` writes it; messages of one lane can use each other's permit.
    lane: str = ""
    delay_us: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that is leased to a worker until `expires_at_us`, unless that is extended.

    `receipt` and `token` are the queue's: by them it knows whether the lease is still this one.
    """

    id: str
    body: str
    lane: str
    history: MessageHistory
    receipt: Any
    token: str
    expires_at_us: int = 0
    #: What its handler returned in an earlier delivery, where that was recorded but not handed on; None: nothing.
    recorded: tuple[str, ...] | None = None
    #: Of the last one of a lease: more of its lane were ready then. True where the queue cannot know.
    more: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: `reason` is `poison`, `failed`, `killed` or `expired`, `error` says what happened."""

    id: str
    body: str
    reason: str
    error: str
    history: MessageHistory
    buried_at_us: int
    lane: str = ""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How a queue stands. Counts of what was done are since the queue was made."""

    name: str
    #: Messages that a worker could take now.
    ready: int = 0
    #: Messages that wait for their time.
    delayed: int = 0
    #: Messages that a worker has.
    in_work: int = 0
    dead: int = 0
    done: int = 0
    failed: int = 0
    #: Seconds since the oldest message was put; None in an empty queue.
    oldest_for: float | None = None
    paused: str | None = None

    @property
    def waiting(self) -> int:
        """Messages that are not finished: ready, delayed and in work."""
        return self.ready + self.delayed + self.in_work


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """Which fields a body must have, which it may have, and of which type each is. Others are kept as they are.

    A type is `str`, `int`, `float`, `bool`, `list`, `dict`, or a union of them: `int | None`.
    """

    required: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in (*self.required.items(), *self.optional.items()):
            for one in _kinds(kind):
                if one not in _NAMES:
                    raise InvalidInput(
                        f"schema: field {name!r} is of type {one!r}, which JSON has not; write one of "
                        f"str, int, float, bool, list, dict, or a union such as int | None"
                    )

    def check(self, body: Body, place: str) -> None:
        """Raise BadMessage, naming the field, where the body is not as the schema says. `place` begins the message."""
        for name, kind in self.required.items():
            if name not in body:
                has = ", ".join(map(repr, body)) or "no fields"
                raise BadMessage(f"{place}: field {name!r} is missing ({_wanted(kind)}); the message has {has}", name)
        for name, kind in (*self.required.items(), *self.optional.items()):
            if name in body and not _fits(body[name], kind):
                raise BadMessage(f"{place}: field {name!r} must be {_wanted(kind)}, not {_shown(body[name])}", name)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return kind.__args__ if isinstance(kind, types.UnionType) else (kind,)


def _wanted(kind: Any) -> str:
    return " or ".join(_NAMES[one] for one in _kinds(kind))


def _fits(value: Any, kind: Any) -> bool:
    for one in _kinds(kind):
        # JSON has one kind of number, and Python takes True for one.
        if one is float and isinstance(value, int | float) and not isinstance(value, bool):
            return True
        if isinstance(value, one) and (one is bool or not isinstance(value, bool)):
            return True
    return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def encode(body: Any, place: str, largest: int | None = None) -> str:
    """A body as text. Raises BadMessage where it is no JSON object, or longer than `largest` bytes of UTF-8."""
    if not hasattr(body, "items"):
        raise BadMessage(f"{place}: a message is a JSON object such as {{'key': 'a.pdf'}}, not {_shown(body)}")
    try:
        text = json.dumps(dict(body), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise BadMessage(f"{place}: the message cannot be written as JSON: {error}") from error
    if largest is not None and size > largest:
        raise BadMessage(
            f"{place}: the message has {size:,} bytes, and this queue takes {largest:,}; put the data somewhere else (a "
            f"file, S3) and its key into the message"
        )
    return text


def decode(text: str, place: str) -> dict[str, Any]:
    """The body of a text. Raises BadMessage where it is no JSON object."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BadMessage(f"{place}: the message is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadMessage(f"{place}: the message is JSON, but no object: {_shown(body)}")
    return body


def checked_id(id: str) -> str:
    """An id that every queue can keep; raises BadMessage for any other."""
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID or not id.isprintable() or id.strip() != id:
        raise BadMessage(
            f"the id of a message is a text of 1 to {LONGEST_ID} printable characters without blanks around it, "
            f"not {_shown(id)}"
        )
    return id


def child_id(id: str, number: int, of: int) -> str:
    """The id of an output: that of its message where it is the only one. Made from it, so that it is the same again."""
    if of == 1:
        return id
    made = f"{id}.{number}"
    if len(made) > LONGEST_ID:
        from hashlib import blake2b

        made = f"{blake2b(id.encode(), digest_size=16).hexdigest()}.{number}"
    return made


def lane_of(ask: Mapping[str, Any]) -> str:
    """What a message asks its gate for, as a text that is the same for equal asks; empty for the plain ask."""
    return json.dumps(ask, sort_keys=True, separators=(",", ":")) if ask else ""


def ask_of(lane: str) -> dict[str, Any]:
    """The arguments of `gate.acquire` that a lane stands for."""
    return json.loads(lane) if lane else {}


def with_receive(history: MessageHistory) -> MessageHistory:
    """The history of a message that was just leased once more."""
    return replace(history, receives=history.receives + 1)
