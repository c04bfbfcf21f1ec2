"""Values of limits that come from outside: a variable, a file, a parameter of AWS Systems Manager.

A `Source` reads one value and may fail in any way it likes. A `Refresher` asks it now and then and gives the last good
answer: a failed or senseless read changes nothing. Above all it never goes back to the configured value once a good one
was seen, because that would raise a limit again that somebody lowered in an incident.
"""

from __future__ import annotations

import os
import time
from math import isfinite

from ..errors import InvalidInput

TYPE_CHECKING = False  # mypy takes this name for typing's, so `typing` stays unimported
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ..aws import AwsClient
else:
    Protocol = object


class Source(Protocol):
    """The port: one value, read anew on every call.

    `read` returns a number or its text. Any exception it raises is counted and logged by the `Refresher` and goes no
    further. It may block: a source that asks a network sets its own time-out.
    """

    def read(self) -> float | str: ...


class EnvSource:
    """`env:NAME`: a variable of this process's environment.

    It changes only when the process itself changes it; use `file:` for a value that an operator edits while the fleet
    runs.
    """

    def __init__(self, name: str) -> None:
        if not name.isidentifier() or not name.isascii():
            raise InvalidInput(f"{name!r} is not the name of an environment variable; write it like env:ADOBE_RPM")
        self.name = name

    def read(self) -> str:
        try:
            return os.environ[self.name]
        except KeyError:
            raise InvalidInput(f"the environment variable {self.name} is not set") from None


class FileSource:
    """`file:PATH`: a text file that holds the number and nothing else, such as a mounted ConfigMap.

    A relative path starts at the working directory; in a configuration file, at that file.
    """

    def __init__(self, path: str) -> None:
        if not path or "\0" in path:
            raise InvalidInput(f"{path!r} is not a path; write it like file:/etc/headgate/adobe-rpm")
        self.path = os.path.abspath(path)  # now: the process may go elsewhere before it reads

    def read(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read(_LONGEST_NUMBER + 1)


class SsmSource:
    """`ssm:NAME`: a parameter of AWS Systems Manager, as in `ssm:/pdf-processing/adobe-api-rpm`.

    `?region=…` and `&endpoint=…` may follow the name; without them boto3 looks where it always does. Needs the extra `aws`
    and the permission `ssm:GetParameter`. A service that does not answer within 2 s has failed this time.
    """

    def __init__(self, text: str) -> None:
        name, question, options = text.partition("?")
        found = dict(part.partition("=")[::2] for part in options.split("&")) if question else {}
        unknown = found.keys() - {"region", "endpoint"}
        if unknown or not all(found.values()):
            wrong = ", ".join(sorted(unknown)) or options
            raise InvalidInput(f"ssm:{text}: {wrong!r} is neither region=… nor endpoint=…")
        if not name.isascii() or not name.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise InvalidInput(
                f"{name!r} is not the name of a parameter; write it like ssm:/pdf-processing/adobe-api-rpm"
            )
        self.name = name
        self.region = found.get("region")
        self.endpoint = found.get("endpoint")
        self._client: AwsClient | None = None
        self._process = 0

    def read(self) -> str:
        if self._client is None or self._process != os.getpid():  # a child of a fork makes connections of its own
            self._client, self._process = self._connect(), os.getpid()
        answer = self._client.request("get_parameter", Name=self.name, WithDecryption=True)
        return str(answer["Parameter"]["Value"])

    def _connect(self) -> AwsClient:
        try:
            from ..aws import AwsClient
        except ModuleNotFoundError as error:
            from ..extras import how_to_install

            raise InvalidInput(f"ssm:{self.name} needs {error.name}: {how_to_install('aws')}") from error
        return AwsClient(
            "ssm",
            region=self.region,
            endpoint=self.endpoint,
            timeout_s=2.0,
            subject=f"SSM parameter {self.name!r}",
            example=f"ssm:{self.name}?region=eu-central-1",
        )


SOURCES: dict[str, Callable[[str], Source]] = {
    "env": EnvSource,
    "file": FileSource,
    "ssm": SsmSource,
}
"""Scheme → what makes the source of the text after the colon. A new source is one class and one line here."""

_LONGEST_NUMBER = 400  # characters; whatever is longer is not a number that somebody wrote


def open_source(text: str, folder: str | None = None) -> Source:
    """The source that `"env:ADOBE_RPM"` or `"file:/run/rpm"` names; `InvalidInput` where it names none.

    A relative path starts at `folder`, by default at the working directory.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in SOURCES:
        known = ", ".join(f"{name}:…" for name in SOURCES)
        raise InvalidInput(f"{text!r} names no source; the sources are {known}, as in env:ADOBE_RPM")
    if scheme == "file" and rest and folder is not None:
        rest = os.path.join(folder, rest)
    return SOURCES[scheme](rest)


class Refresher:
    """The value of one limit, kept fresh from a source.

    `initial` is the configured value: it stands until the first good read, and never again after it. `every` is in
    seconds of `clock` (default: the monotonic clock of this process). `check` is called with each new number and raises
    `InvalidInput` for one that the limit would not take. `name` is what the log calls it.

    `failures` counts failed and senseless reads, `last_error` tells of the latest (None after a good one), and `good`
    says whether a good value was ever seen.
    """

    def __init__(
        self,
        source: Source,
        initial: float,
        *,
        every: float,
        name: str = "limit",
        check: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.every = every
        self.name = name
        self.failures = 0
        self.last_error: str | None = None
        self.good = False
        self._value = initial
        self._check = check
        self._clock = clock
        self._asked: float | None = None
        self._turn = 0
        self._answered = 0

    @property
    def current(self) -> float:
        """The value in force, without asking the source."""
        return self._value

    def due(self, now: float | None = None) -> bool:
        """Whether `value` would ask the source; for callers that must not block and would rather do it elsewhere."""
        if self._asked is None:
            return True
        waited = (self._clock() if now is None else now) - self._asked
        return waited >= self.every or waited < 0  # a clock that was set back must not stop the refreshing

    def value(self, now: float | None = None) -> float:
        """The value in force; asks the source first when that is due. `now` is in seconds, None reads the clock."""
        if now is None:
            now = self._clock()
        if self.due(now):
            # Marked before the read: while one thread waits for a slow source, the others go on with the last good
            # value. There is no lock, so nothing can be left locked by a fork; two threads that ask in the same instant
            # read twice, which is harmless.
            self._asked = now
            self._refresh()
        return self._value

    def _refresh(self) -> None:
        self._turn = turn = self._turn + 1
        try:
            value = _number(self.source.read())
            if self._check is not None:
                self._check(value)
        except Exception as error:  # a source may fail in any way it likes, and none of them may reach an ask
            self._failed(f"{type(error).__name__}: {error}")
            return
        if turn < self._answered:
            return  # this read hung, and a later one has been answered meanwhile
        self._answered = turn
        before, self._value = self._value, value
        recovered = self.last_error is not None
        self.good, self.last_error = True, None
        if value != before or recovered:
            _log("info", "%s is %g (was %g), read from its source", self.name, value, before)

    def _failed(self, error: str) -> None:
        self.failures += 1
        self.last_error = error
        kept = "the last good value" if self.good else "the configured value; its source was never read well"
        _log("warning", "%s stays %g, %s: %s", self.name, self._value, kept, error)


def _number(raw: object) -> float:
    """The number that a source gave, whole where it is whole; `InvalidInput` for anything that cannot be a limit."""
    number = raw
    if isinstance(raw, str):
        text = raw.strip()
        try:
            if len(text) > _LONGEST_NUMBER or "_" in text or not text.isascii():
                raise ValueError
            number = float(text)
        except ValueError:
            shown = text if len(text) <= 40 else text[:37] + "..."
            raise InvalidInput(f"{shown!r} is not a number") from None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidInput(f"{number!r} is not a number")
    if not isfinite(number) or number <= 0:
        raise InvalidInput(f"{number!r} is not a finite number above zero")
    # Slots are counted in whole numbers, and "150" or 150.0 is one.
    return int(number) if number == int(number) else float(number)


def _log(level: str, message: str, *values: object) -> None:
    import logging  # here, because it takes longer to import than everything above and is seldom needed

    getattr(logging.getLogger("headgate.config.sources"), level)(message, *values)
