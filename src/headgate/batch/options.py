"""What a run was told, checked before anything is called or charged."""

from __future__ import annotations

import inspect
from math import isfinite
from secrets import token_hex

from ..clients.retry import Retry
from ..errors import InvalidInput
from ..gate import AsyncGate, Gate
from .journal import Journal
from .progress import shown_by
from .ramp import ramp_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from typing import Any

    from .ramp import Ramp

#: Calls at a time where the gate has no limit of slots, and at most where it has one.
WORKERS, MOST_WORKERS = 64, 1000


class Options:
    """The arguments of `run` and `arun`."""

    def __init__(
        self,
        items: Any,
        call: Any,
        gate: Gate | AsyncGate,
        *,
        workers: int | None,
        retry: Retry | None,
        cost: Any,
        key: Any,
        priority: str | None,
        holder: Any,
        skip_existing: Any,
        on_result: Any,
        in_order: bool,
        keep: bool,
        price: Any,
        total: int | None,
        journal: Journal | str | PathLike[str] | None,
        progress: Any,
    ) -> None:
        if not (hasattr(items, "__iter__") or hasattr(items, "__aiter__")) or isinstance(items, str | bytes):
            raise InvalidInput(f"items is an iterable of items, such as a list or a generator, not {items!r}")
        self.items = items
        self.call = call
        self.wants_attempt = _takes_attempt(call)
        self.is_async = any(inspect.iscoroutinefunction(function) for function in (call, type(call).__call__))
        if not isinstance(gate, Gate | AsyncGate):
            raise InvalidInput(f"gate is a Gate or an AsyncGate, not {gate!r}")
        self.retry = _checked("retry", retry, Retry) or Retry()
        self._cost, self._key, self._priority, self._holder = cost, key, priority, holder
        self.same_for_all = not (callable(cost) or callable(key))
        if self.same_for_all:
            gate.policy.plan(cost, key, priority)  # a mistake shows before anything is called
        self.is_plain = self.same_for_all and key is None and priority is None and holder is None and cost == 1
        self.workers = _workers(workers, gate)
        self.skip_existing = _function("skip_existing", skip_existing, "an item")
        self.on_result = _function("on_result", on_result, "a ItemResult")
        self.price = _function("price", price, "an item and its value")
        self.in_order = in_order
        self.keep = keep
        self.total = _total(total, items)
        self.journal = _journal(journal)
        if not isinstance(progress, bool) and not callable(progress):
            raise InvalidInput(f"progress is True, False or a function of a RunProgress, not {progress!r}")
        self.progress = shown_by(progress)
        self._run_id = token_hex(8)

    @property
    def costs(self) -> dict[str, float]:
        """What a call costs by unit, as far as it is the same for all."""
        if callable(self._cost):
            return {}
        return dict(self._cost) if hasattr(self._cost, "items") else {"requests": float(self._cost)}

    def ask_of(self, item: Any) -> dict[str, Any]:
        """The arguments of `acquire` for an item."""
        return {
            "cost": self._cost(item) if callable(self._cost) else self._cost,
            "key": self._key(item) if callable(self._key) else self._key,
            "priority": self._priority,
            "holder": self._holder(item) if callable(self._holder) else self._holder,
        }

    def id_of(self, index: int) -> str:
        """The same for all attempts at an item, in all runs of one journal."""
        return f"{self._run_id if self.journal is None else self.journal.run_id}-{index}"

    def price_of(self, index: int, item: Any, value: Any) -> float:
        """What a call cost, in money; InvalidInput where the function does not say so."""
        try:
            price = self.price(item, value)  # type: ignore[misc]
        except Exception as error:
            raise InvalidInput(f"price() failed for item {index}: {type(error).__name__}: {error}") from error
        if isinstance(price, bool) or not isinstance(price, int | float) or not isfinite(price) or price < 0:
            raise InvalidInput(f"price() gave {price!r} for item {index}; a price is a number, 0 or more")
        return float(price)

    def ramp(self, gate: AsyncGate) -> Ramp:
        return ramp_for(gate.policy.limits, self.workers, self.costs)


def _takes_attempt(call: Any) -> bool:
    """Whether it is called with an item alone, or with an item and its attempt."""
    right = "call is a function of an item, or of an item and its attempt: call(item) or call(item, attempt)"
    if not callable(call):
        raise InvalidInput(f"{right}; {call!r} cannot be called")
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_one = takes_any or any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if by_name or len(needed) > 2 or not takes_one:
        name = getattr(call, "__qualname__", repr(call))
        raise InvalidInput(f"{right}; {name} takes {inspect.signature(call)}. functools.partial fills in the rest")
    return len(needed) == 2


def _workers(workers: int | None, gate: Gate | AsyncGate) -> int:
    if workers is None:
        slots = [limit.limit for limit in gate.policy.limits if limit.leased]
        return max(1, min(int(min(slots, default=WORKERS)), MOST_WORKERS))
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InvalidInput(f"workers is how many calls may be under way at once, 1 or more, not {workers!r}")
    return workers


def _journal(journal: Journal | str | PathLike[str] | None) -> Journal | None:
    if journal is None or isinstance(journal, Journal):
        return journal
    if not isinstance(journal, str) and not hasattr(journal, "__fspath__"):
        raise InvalidInput(f"journal is the path of a file, or a Journal, not {journal!r}")
    return Journal(journal)


def _total(total: int | None, items: Any) -> int | None:
    if total is None:
        return len(items) if hasattr(items, "__len__") else None
    if isinstance(total, bool) or not isinstance(total, int) or total < 0:
        raise InvalidInput(f"total is how many items there are, not {total!r}")
    return total


def _checked(name: str, value: Any, kind: type[Any]) -> Any:
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(f"{name} is a {kind.__name__}, not {value!r}")
    return value


def _function(name: str, value: Any, of: str) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise InvalidInput(f"{name} is a function of {of}, not {value!r}")
    return value  # type: ignore[no-any-return]
