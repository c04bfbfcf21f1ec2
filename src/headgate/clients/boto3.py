"""`boto3` clients whose calls take a permit, by the events that botocore offers for it. Nothing of boto3 is imported.

gate_client(boto3.client("bedrock-runtime"), gate)
"""

from __future__ import annotations

from contextvars import ContextVar

from ..errors import InvalidInput
from .asking import Asking
from .calls import Call, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..gate import Gate
    from ..gate.base import Cost, Duration, Key

#: The call of this thread that is under way, by the id of its client's gate.
_calls: ContextVar[dict[int, Call] | None] = ContextVar("headgate_boto3", default=None)


class GatedClient:
    """The handlers that gate one client: `stop()` takes them off again."""

    def __init__(self, client: Any, asking: Asking, operations: frozenset[str] | None) -> None:
        self._events = client.meta.events
        self._asking = asking
        self._operations = operations
        self._service = client.meta.service_model.service_id.hyphenize()
        self._handlers = (
            ("before-send", self._before_send),
            ("response-received", self._received),
        )
        for event, handler in self._handlers:
            self._events.register(f"{event}.{self._service}", handler, unique_id=f"headgate-{id(self)}-{event}")

    def stop(self) -> None:
        for event, handler in self._handlers:
            self._events.unregister(f"{event}.{self._service}", handler, unique_id=f"headgate-{id(self)}-{event}")

    def _before_send(self, request: Any, event_name: str, **_: Any) -> None:
        """Every attempt comes by here, botocore's own retries too: each takes a permit."""
        operation = event_name.rpartition(".")[2]
        if self._operations is not None and operation not in self._operations:
            return
        self._end_stray()
        ask = self._asking.of(request, lambda: f"{operation} {request.url}")
        if self._asking.timeout_s is not None:
            ask = {**ask, "timeout": self._asking.timeout_s}
        call = self._asking.call(self._asking.gate.acquire(**ask))
        try:
            drive(call.write())
        except BaseException:
            drive(call.fail())
            raise
        _calls.set({**(_calls.get() or {}), id(self): call})

    def _received(
        self, response_dict: Any = None, parsed_response: Any = None, exception: Any = None, **_: Any
    ) -> None:
        call = self._taken()
        if call is None:
            return
        if exception is not None or parsed_response is None:
            drive(call.fail())
            return
        try:
            drive(call.take(parsed_response))
        finally:
            drive(call.end())

    def _taken(self) -> Call | None:
        under_way = _calls.get() or {}
        if (call := under_way.get(id(self))) is not None:
            _calls.set({key: value for key, value in under_way.items() if key != id(self)})
        return call

    def _end_stray(self) -> None:
        """An attempt of this thread that ended without an answer, in a way that botocore tells no handler of."""
        if (call := self._taken()) is not None:
            drive(call.fail())


def gate_client(
    client: Any,
    gate: Gate,
    *,
    operations: Iterable[str] | None = None,
    cost: Cost | Callable[[Any], Cost] = 1,
    key: Key | Callable[[Any], Key | None] | None = None,
    priority: str | Callable[[Any], str | None] | None = None,
    holder: str | Callable[[Any], str | None] | None = None,
    timeout: Duration | None = None,
) -> GatedClient:
    """Have every call of a boto3 client take a permit of a `Gate`; `stop()` of what this returns ends it.

    `operations` are those that take one, by the names AWS has for them (`{"InvokeModel"}`); None is all. `cost`, `key`,
    `priority` and `holder` are values or functions of botocore's `AWSPreparedRequest`. Each attempt of botocore's own
    retries takes a permit: switch them off with `Config(retries={"total_max_attempts": 1})` to retry by `Retry.call`.
    """
    if not hasattr(getattr(client, "meta", None), "events"):
        raise InvalidInput(f"gate_client takes a client of boto3, not {client!r}")
    known = set(client.meta.service_model.operation_names)
    wanted = None if operations is None else frozenset([operations] if isinstance(operations, str) else operations)
    if wanted is not None and (unknown := sorted(wanted - known)):
        raise InvalidInput(f"{client.meta.service_model.service_name} has no operation {', '.join(unknown)}")
    asking = Asking(
        gate, is_async=False, cost=cost, key=key, priority=priority, holder=holder, timeout=timeout, settle=None
    )
    return GatedClient(client, asking, wanted)
