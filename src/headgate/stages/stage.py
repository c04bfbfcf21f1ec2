"""`Stage` and `Pipeline`: what is worked on where, and what comes after it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cached_property

from ..duration import parse
from ..errors import InvalidInput
from ..gate import AsyncGate, Gate
from .message import BadMessage, MessageSchema, NewMessage, checked_id, child_id, decode, encode, lane_of
from .outcomes import SECOND, RetryPolicy
from .queues import checked_name, open_queue
from .queues.base import HandOff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from .message import Body, QueueStats
    from .queues.base import PutResult, Queue

    Handler = Callable[..., Any]

#: What an `ask` of a stage may say, of the arguments of `gate.acquire`.
_ASK = ("cost", "key", "priority")

#: Messages that `put` hands to a queue in one operation.
PUT_AT_ONCE = 500


@dataclass(eq=False)
class Stage:
    """A queue, a gate and a handler. A pipeline is a chain of stages; the outputs of one are messages for the next.

    `handler(job)` returns None, one body, or a list of bodies, or raises an outcome; it may be a coroutine function.
    `gate` admits each call of it; None: no limit. `schema` is field → type, or a `MessageSchema`. `ask(body)` gives what a
    message asks the gate for where that differs (`cost`, `key`, `priority`). `visibility` is for how long a message is
    leased unless that is extended, `deadline` how long a handler may take.
    """

    name: str
    handler: Handler
    gate: Gate | AsyncGate | None = None
    schema: Mapping[str, Any] | MessageSchema | None = None
    ask: Callable[[Body], Mapping[str, Any]] | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    visibility: str | float = "30s"
    deadline: str | float = "10m"
    #: The URL of its queue, where that is not the pipeline's.
    queues: str | None = None

    #: Set by its pipeline.
    pipeline: Pipeline | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checked_name(self.name)
        if not callable(self.handler):
            raise InvalidInput(f"stage {self.name!r}: a handler is a function that takes a job, not {self.handler!r}")
        if self.gate is not None and not isinstance(self.gate, Gate | AsyncGate):
            raise InvalidInput(f"stage {self.name!r}: gate is a Gate or an AsyncGate, not {self.gate!r}")
        if self.schema is not None and not isinstance(self.schema, MessageSchema):
            self.schema = MessageSchema(dict(self.schema))
        self.visibility_us = parse(self.visibility, what=f"stage {self.name!r}: visibility")
        self.deadline_us = parse(self.deadline, what=f"stage {self.name!r}: deadline")
        #: Whether the handler is a coroutine function, and so runs on the worker's event loop.
        self.is_async = inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(
            getattr(self.handler, "__call__", None)  # noqa: B004  # an object with `async def __call__`
        )

    @property
    def place(self) -> str:
        """For messages."""
        return f"stage {self.name!r}" if self.pipeline is None else f"stage {self.pipeline.name}.{self.name}"

    @property
    def queue_name(self) -> str:
        return self.name if self.pipeline is None else f"{self.pipeline.name}.{self.name}"

    @cached_property
    def queue(self) -> Queue:
        """The queue that its messages wait in; opened when it is first needed."""
        url = self.queues or (None if self.pipeline is None else self.pipeline.queues)
        if url is None:
            raise InvalidInput(f"{self.place} is in no pipeline, and has no queue: give it queues='sqlite:///…'")
        return open_queue(url, self.queue_name)

    @property
    def next(self) -> Stage | None:
        """The stage that takes its outputs."""
        return None if self.pipeline is None else self.pipeline.after(self)

    # --- messages -------------------------------------------------------------------------------------------------

    def message(self, body: Any, id: str = "", delay_us: int = 0) -> NewMessage:
        """A body as a message of this stage. Raises BadMessage, naming the field, where it is not as it should be."""
        if not hasattr(body, "items"):
            encode(body, self.place)
        self.check(body)
        text = encode(body, self.place, self.queue.semantics.largest_body)
        return NewMessage(text, checked_id(id) if id else "", self.lane(body), delay_us)

    def check(self, body: Body) -> None:
        if isinstance(self.schema, MessageSchema):
            self.schema.check(body, self.place)

    def lane(self, body: Body) -> str:
        """What a message asks the gate for."""
        if self.ask is None:
            return ""
        ask = dict(self.ask(body))
        if unknown := [name for name in ask if name not in _ASK]:
            raise InvalidInput(f"{self.place}: ask() may say {', '.join(_ASK)}, not {', '.join(unknown)}")
        return lane_of(ask)

    def put(self, *bodies: Body, id: str = "", delay: str | float = 0) -> list[PutResult]:
        """Put messages into its queue: all of them, or none where one is not as it should be.

        `id` recognises a message that is put a second time, for as long as it waits, is dead, or was done within 14 days;
        it is for one body. `delay` (seconds) is until it may be taken.
        """
        if id and len(bodies) != 1:
            raise InvalidInput(f"{self.place}: an id is for one message, and {len(bodies)} were put")
        delay_us = parse(delay, what="delay", zero=True)
        return self.put_messages([self.message(body, id, delay_us) for body in bodies])

    def put_messages(self, messages: Sequence[NewMessage]) -> list[PutResult]:
        """Put messages that were made by `message`, a few hundred in one operation."""
        results: list[PutResult] = []
        for start in range(0, len(messages), PUT_AT_ONCE):
            results += self.queue.put(messages[start : start + PUT_AT_ONCE])
        return results

    def body_of(self, text: str) -> dict[str, Any]:
        """The body of a message as received. Raises BadMessage."""
        body = decode(text, self.place)
        self.check(body)
        return body

    def outputs_of(self, returned: Any) -> tuple[str, ...]:
        """What a handler returned, as bodies for the next stage. Raises InvalidInput or BadMessage."""
        if returned is None:
            return ()
        following = self.next
        if following is None:
            raise InvalidInput(
                f"{self.place}: its handler returned {type(returned).__name__}, and no stage comes after it: return None"
            )
        bodies = list(returned) if isinstance(returned, list | tuple) else [returned]
        return tuple(following.message(body).body for body in bodies)

    def hand_off(self, id: str, outputs: Sequence[str]) -> HandOff | None:
        """The outputs of a message, under ids that are made from its own."""
        following = self.next
        if not outputs or following is None:
            return None
        messages = []
        for number, text in enumerate(outputs):
            lane = "" if following.ask is None else following.lane(decode(text, following.place))
            messages.append(NewMessage(text, child_id(id, number, len(outputs)), lane))
        return HandOff(following.queue_name, tuple(messages))

    @property
    def visibility_s(self) -> float:
        return self.visibility_us / SECOND


class Pipeline:
    """A chain of stages and where their queues are: `Pipeline("papers", queues="sqlite:///papers.db")`.

    Stages are given as a list, or written below it with `@pipeline.stage(…)`, first to last. Stages whose queues are in one
    file (or one Redis) hand over in one operation.
    """

    def __init__(self, name: str, stages: Sequence[Stage] = (), queues: str = "memory:") -> None:
        self.name = checked_name(name)
        self.queues = queues
        self._stages: dict[str, Stage] = {}
        for stage in stages:
            self.add(stage)

    def add(self, stage: Stage) -> Stage:
        """Add a stage as the last one."""
        if stage.pipeline is not None:
            raise InvalidInput(f"{stage.place} is in pipeline {stage.pipeline.name!r} already; make another one")
        if stage.name in self._stages:
            raise InvalidInput(f"pipeline {self.name!r} has a stage {stage.name!r} already; give it another name")
        stage.pipeline = self
        checked_name(stage.queue_name)
        self._stages[stage.name] = stage
        return stage

    def stage(self, name: str | None = None, **options: Any) -> Callable[[Handler], Handler]:
        """A decorator: the function becomes the handler of a new last stage. Options are those of `Stage`."""

        def decorate(handler: Handler) -> Handler:
            self.add(Stage(name or handler.__name__, handler, **options))
            return handler

        return decorate

    def __getitem__(self, name: str) -> Stage:
        try:
            return self._stages[name]
        except KeyError:
            has = ", ".join(self._stages) or "none"
            raise InvalidInput(f"pipeline {self.name!r} has no stage {name!r}; it has {has}") from None

    def __iter__(self) -> Iterator[Stage]:
        return iter(self._stages.values())

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def first(self) -> Stage:
        if not self._stages:
            raise InvalidInput(f"pipeline {self.name!r} has no stage")
        return next(iter(self))

    def after(self, stage: Stage) -> Stage | None:
        stages = list(self)
        place = stages.index(stage)
        return stages[place + 1] if place + 1 < len(stages) else None

    def put(self, *bodies: Body, id: str = "", delay: str | float = 0) -> list[PutResult]:
        """Put messages into the queue of the first stage; see `Stage.put`."""
        return self.first.put(*bodies, id=id, delay=delay)

    def stats(self) -> dict[str, QueueStats]:
        """How each stage's queue stands, first to last."""
        return {stage.name: stage.queue.stats() for stage in self}

    def close(self) -> None:
        """Close its queues. One that is used again is opened again."""
        for stage in self:
            if "queue" in stage.__dict__:
                stage.queue.close()
                del stage.__dict__["queue"]

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {' → '.join(self._stages) or 'no stages'} at {self.queues}>"


__all__ = ["BadMessage", "Pipeline", "Stage"]
