"""PURE. What moves the working limit of an adaptive concurrency: a rule, fed with how permits end."""

from __future__ import annotations

from ...errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: What a rule has learned: the working limit, a count of successes, when it last shrank, and what else the rule keeps.
    Learned = tuple[float, ...]


class AdaptiveRule:
    """What the working limit should be, as a pure function of how permits end. Which asks it lets in is decided elsewhere.

    A rule starts at `start` and never goes below `minimum`. Its arguments are whole numbers of at least 1.
    """

    __slots__ = ("minimum", "start")
    #: How a configuration and stored policies call it.
    name = ""
    start: int
    minimum: int

    def __init__(self, start: int, minimum: int, **others: int) -> None:
        for what, number in {"start": start, "minimum": minimum, **others}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidInput(
                    f"{what} of {type(self).__name__} must be a whole number of at least 1, not {number!r}"
                )
            setattr(self, what, number)
        if start < minimum:
            raise InvalidInput(f"start of {type(self).__name__} ({start}) is below its minimum ({minimum})")

    def arguments(self) -> dict[str, int]:
        """What it was made with, by name, `start` and `minimum` first."""
        names = ("start", "minimum", *self.__slots__)
        return {name: getattr(self, name) for name in names}

    def spec(self) -> tuple[Any, ...]:
        """The arguments and the name, as plain values: what is stored with a ticket and given to the script on Redis."""
        return (*self.arguments().values(), self.name)

    def begin(self, maximum: float) -> float:
        """The working limit of a gate that has learned nothing yet."""
        return min(self.start, maximum)

    def next(self, learned: Learned, outcome: str, granted: int, now: int, in_use: int, maximum: float) -> Learned:
        """What is known after a permit that was granted at `granted` ended with `outcome`.

        `in_use` counts it still. `learned` may be shorter than what is returned: state that another rule, or an earlier
        version, has left.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({told})"
