"""What a function under `@gate.limited` asks with each call: values, and functions of the call's arguments."""

from __future__ import annotations

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .base import BaseGate


class LimitedAsk:
    """The ask of a decorated function. Values are checked when the decorator is made, functions as they are called."""

    __slots__ = ("_fixed", "_functions", "_gate")

    def __init__(
        self, gate: BaseGate, amount: Any, cost: Any, key: Any, priority: Any, holder: Any, **rest: Any
    ) -> None:
        if callable(amount):
            raise InvalidInput(
                f"write @gate.limited() with its parentheses, and a cost that is a function by its name: "
                f"cost={getattr(amount, '__name__', '…')}"
            )
        cost = cost if amount is None else amount
        given = {"cost": cost, "key": key, "priority": priority, "holder": holder}
        self._gate = gate
        self._functions = {name: value for name, value in given.items() if callable(value)}
        self._fixed = {name: value for name, value in {**given, **rest}.items() if name not in self._functions}
        if not self._functions.keys() & {"cost", "key", "priority"}:
            gate.policy.plan(cost, key, priority)  # a mistake shows where it is written

    def check(self, function: Callable[..., Any], *, is_async: bool) -> None:
        """Refuse a function that would hold its permit for no time at all."""
        import inspect

        name = getattr(function, "__qualname__", repr(function))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(f"{name} is a generator: it would run after its permit ended; acquire one inside of it")
        if inspect.iscoroutinefunction(function) is not is_async:
            other = "an AsyncGate" if inspect.iscoroutinefunction(function) else "a Gate"
            raise InvalidInput(f"{name} takes its permits from {other}, not from {self._gate!r}")

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What `acquire` is called with. An error of a function goes to the caller: nothing was asked."""
        if not self._functions:
            return self._fixed
        return {**self._fixed, **{name: given(*args, **kwargs) for name, given in self._functions.items()}}
