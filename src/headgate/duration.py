"""Durations as people write them, and as the core counts them: whole microseconds.

`parse` takes `"1m"`, `"250ms"`, `"1h30m"`, ISO 8601 `"PT1M"`, a number of seconds, or a `timedelta`; `render` writes
the short form back, and `parse(render(us)) == us` for every duration.
"""

from __future__ import annotations

import math
import re

from .errors import InvalidInput

TYPE_CHECKING = False  # mypy takes this name for typing's, so `typing` and `datetime` stay unimported
if TYPE_CHECKING:
    from datetime import timedelta

UNITS: dict[str, int] = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
"""Microseconds in each unit of the short form, the largest first."""

LONGEST = 1 << 53
"""Times must fit a double exactly, because Lua, JSON and JavaScript read them; that is 285 years."""

# Patterns stay text until the first use: compiling them takes longer than importing the rest of this module.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SHORT = "".join(rf"(?:({_NUMBER}){unit})?" for unit in UNITS)
_ISO = rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?"
_ISO_CALENDAR = rf"P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}[WD])*(?:T.*)?"
_LONGEST_TEXT = 64  # nobody writes a longer one, and int() of thousands of digits is slow or refused
_RIGHT = 'write it like "250ms", "1.5s", "1m", "1h30m", "2d", "PT1M", or as a number of seconds'


def parse(value: str | int | float | timedelta, *, what: str = "duration", zero: bool = False) -> int:
    """The duration in microseconds.

    A plain number is seconds. Anything but a positive, finite duration of at least one microsecond is `InvalidInput`,
    with `what` naming the thing in the message; `zero=True` allows nought.
    """
    # Numerator and denominator in microseconds: exact like Fraction, whose import would take longer than ours.
    if isinstance(value, str):
        numerator, denominator = _from_text(value, what)
    else:
        numerator, denominator = _from_number(value, what)
    if numerator < 0:
        raise InvalidInput(f"{what}: {_short(value)} is negative; {_RIGHT}")
    if numerator == 0:
        if zero:
            return 0
        raise InvalidInput(f"{what}: {value!r} is no time at all and must be more than zero; {_RIGHT}")
    us = (2 * numerator + denominator) // (2 * denominator)
    if us == 0:
        raise InvalidInput(f"{what}: {value!r} is shorter than a microsecond, the smallest that is counted; {_RIGHT}")
    if us > LONGEST:
        raise InvalidInput(f"{what}: {_short(value)} is longer than 285 years, the longest that is counted; {_RIGHT}")
    return us


def render(us: int) -> str:
    """The short, exact text for a number of microseconds: `"1m"`, `"250ms"`, `"1.5s"`, `"1h30m"`; `"0s"` for nought."""
    if us < 0:
        return "-" + render(-us)
    text = ""
    for unit in "dhm":  # people say 14 days: weeks are read, never written
        count, us = divmod(us, UNITS[unit])
        if count:
            text += f"{count}{unit}"
    for unit in ("s", "ms", "us"):
        whole, rest = divmod(us, UNITS[unit])
        if whole:
            digits = len(str(UNITS[unit])) - 1
            decimals = f".{rest:0{digits}d}".rstrip("0") if rest else ""
            return f"{text}{whole}{decimals}{unit}"
    return text or "0s"


def _from_text(value: str, what: str) -> tuple[int, int]:
    text = value.strip()
    if len(text) > _LONGEST_TEXT:
        raise InvalidInput(f"{what}: {_short(value)} is not a duration; {_RIGHT}")
    if re.match(r"-\s*[0-9P.]", text):
        raise InvalidInput(f"{what}: {value!r} is negative; {_RIGHT}")
    if text[:1] == "P":
        match = re.fullmatch(_ISO, text)
        if match is None and re.fullmatch(_ISO_CALENDAR, text):
            raise InvalidInput(
                f"{what}: {value!r} counts months or years, which have no fixed length; say it in days or hours, like "
                '"P30D" or "PT744H" (a minute is "PT1M")'
            )
        sizes = [UNITS[unit] for unit in "wdhms"]
        if text.endswith("T"):  # "P1DT" promises a time and gives none
            match = None
    else:
        match = re.fullmatch(_SHORT, text)
        sizes = list(UNITS.values())
    if match is None or not any(match.groups()):
        unit = f' (or "{text}s", if seconds are meant)' if re.fullmatch(_NUMBER, text) else ""
        raise InvalidInput(f"{what}: {value!r} is not a duration; {_RIGHT}{unit}")
    numerator, denominator = 0, 1
    for count, size in zip(match.groups(), sizes, strict=True):
        if count:
            whole, _, decimals = count.partition(".")
            scale = 10 ** len(decimals)
            part = int(whole + decimals) * size
            numerator, denominator = numerator * scale + part * denominator, denominator * scale
    return numerator, denominator


def _from_number(value: object, what: str) -> tuple[int, int]:
    if isinstance(value, bool):  # True is an int, and would be one second
        raise InvalidInput(f"{what}: {value!r} is not a duration; {_RIGHT}")
    if isinstance(value, int):
        return value * UNITS["s"], 1
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{what}: {value!r} is not a finite number of seconds; {_RIGHT}")
        numerator, denominator = value.as_integer_ratio()
        return numerator * UNITS["s"], denominator
    # A timedelta is known by its face, so that datetime need not be imported. Its parts are whole numbers and exact;
    # total_seconds() is a double, and rounds.
    parts = [getattr(value, part, None) for part in ("days", "seconds", "microseconds")]
    if callable(getattr(value, "total_seconds", None)) and all(isinstance(part, int) for part in parts):
        sizes = (UNITS["d"], UNITS["s"], UNITS["us"])
        return sum(part * size for part, size in zip(parts, sizes, strict=True) if part), 1
    raise InvalidInput(f"{what}: {_short(value)} is not a duration; {_RIGHT}")


def _short(value: object) -> str:
    """Like repr, but a thousand digits do not fill the screen (and repr of a huge int raises)."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number beyond 2**{value.bit_length() - 1}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
