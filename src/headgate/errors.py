"""What can go wrong, one class per thing a caller would do about it.

Every class is a `HeadgateError`. All of them survive pickling with their attributes, because asks are often made in a
process pool, and an error that cannot travel back turns into a hang there.
"""

from __future__ import annotations


class HeadgateError(Exception):
    """Anything that Headgate raises on purpose."""


class InvalidInput(HeadgateError, ValueError):
    """A cost, key, duration, limit or name that makes no sense; the message says what, where and what would be right.

    Nothing was charged. It is a `ValueError` as well, so that code which knows nothing of Headgate handles it sensibly.
    """


class ConfigError(InvalidInput):
    """A configuration that is not accepted, with the place of the first mistake in it.

    `file` is the configuration file, `path` the place inside it (`gates.adobe.limits[0].per`; None when the file as a
    whole is meant), `problem` what is wrong and `remedy` what would be right.
    """

    def __init__(
        self, problem: str, *, file: str | None = None, path: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.file = file
        self.path = path
        self.remedy = remedy

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.file, self.path) if part)
        text = f"{place}: {self.problem}" if place else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text


class PolicyChanged(ConfigError):
    """The guard's gate has another kind of limit, unit, key, class or way of waiting than the ask was made with.

    Nothing was decided. A gate that takes its limits from the guard has them by now, and asks again by itself.
    """


class UnknownGate(ConfigError, KeyError):
    """The configuration has no gate of that name. A `KeyError` too, so that `name in config` and `config.get` work."""


def figure(number: float) -> str:
    """A number for a message: whole as it is, else with three digits that count."""
    return f"{number:.0f}" if number == int(number) or abs(number) >= 100 else f"{number:.3g}"


class Denied(HeadgateError):
    """The ask was not granted, and nothing was charged for it.

    `reason` says why in words, `gate` and `limit` name what refused it (`limit` is None when no single limit did, as
    with a pause), `retry_after` is in seconds (None when waiting would not help) and `position` is the place in the
    line that the ask had when it gave up (None when it never stood in line).
    """

    def __init__(
        self,
        reason: str,
        *,
        gate: str | None = None,
        limit: str | None = None,
        retry_after: float | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.gate = gate
        self.limit = limit
        self.retry_after = retry_after
        self.position = position

    # The text is made when it is read: a busy gate denies far more often than a program prints.
    def __str__(self) -> str:
        facts = []
        if self.limit is not None:
            facts.append(f"limit {self.limit!r}")
        if self.retry_after is not None:
            facts.append(f"retry after {figure(self.retry_after)} s")
        if self.position is not None:
            facts.append(f"position {self.position} in line")
        text = self.reason if self.gate is None else f"gate {self.gate!r}: {self.reason}"
        return f"{text} ({', '.join(facts)})" if facts else text


class StoreUnavailable(HeadgateError):
    """The store cannot be reached or does not answer in time.

    `decided` says whether the command took effect: False: it surely did not; None: unknown, and it may be sent again; True:
    it has to be taken for decided, because the reply was lost and sending it again might do it twice.
    """

    #: Whether a gate takes it for an outage and follows `on_store_error`; not where the store answered and was only busy.
    outage = True

    def __init__(self, *args: object, decided: bool | None = None) -> None:
        super().__init__(*args)
        self.decided = decided


class StoreFormatError(HeadgateError):
    """The store holds something that is not ours, is damaged, or is of a newer format; nothing in it was changed."""


class KindChanged(HeadgateError):
    """The store has another kind of limit under this name; `reset` the gate, or give the new limit a new name."""

    def __init__(
        self, message: str | None = None, *, gate: str = "", limit: str = "", was: str = "", now: str = ""
    ) -> None:
        if message is None:
            message = (
                f"gate {gate!r}: limit {limit!r} is now a {now}, but the store holds a {was} under that name; "
                f"reset() the gate (`headgate reset {gate}`), or give the new limit another name"
            )
        super().__init__(message)
        self.gate = gate
        self.limit = limit
        self.was = was
        self.now = now


class IdConflict(HeadgateError):
    """A different ask was made under an id that is still remembered; the first ask stands, this one charged nothing."""


class AttemptOver(HeadgateError):
    """A request arrived, perhaps late or a second time, whose ask had ended or was cancelled: it was not admitted again.

    Gates ask anew by themselves. A client of the guard that sends an `attempt` of its own makes a new one to ask again.
    """


class LeaseLost(HeadgateError):
    """The lease expired, or was released by its id, before its holder let go: the slot may be another's now."""
