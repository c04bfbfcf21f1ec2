"""Distributions, as a scenario writes them: a constant, or a table such as `{ lognormal = "50ms", sigma = 0.8 }`."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, exp, log, sin, sqrt, tau

from .. import duration
from ..config.toml_table import Table, listed, type_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    Sampler = Callable[[], float]

KINDS = ("constant", "uniform", "lognormal", "exponential", "mix")
_KEYS = (*KINDS, "sigma", "plus")
_RIGHT = (
    'write "5s", { uniform = ["2s", "10s"] }, { lognormal = "50ms", sigma = 0.8, plus = "50ms" }, '
    '{ exponential = "5s" } or { mix = [{ share = 1, constant = "5s" }, { share = 2, uniform = ["30s", "60s"] }] }'
)


@dataclass(frozen=True, slots=True)
class Chance:
    """A distribution of durations in microseconds, or of amounts. `plus` is added to every draw."""

    kind: str
    #: constant: (value,); uniform: (low, high); lognormal: (median, sigma); exponential: (mean,)
    numbers: tuple[float, ...] = ()
    plus: float = 0.0
    #: mix: (share, what is drawn then)
    parts: tuple[tuple[float, Chance], ...] = ()

    @property
    def mean(self) -> float:
        if self.kind == "mix":
            whole = sum(share for share, _ in self.parts)
            return sum(share * part.mean for share, part in self.parts) / whole
        if self.kind == "uniform":
            return self.plus + sum(self.numbers) / 2
        if self.kind == "lognormal":
            return self.plus + self.numbers[0] * exp(self.numbers[1] ** 2 / 2)
        return self.plus + self.numbers[0]

    @property
    def is_zero(self) -> bool:
        return self.kind == "constant" and self.numbers[0] + self.plus == 0

    def sampler(self, rng: Random) -> Sampler:
        """A function that draws, with everything looked up beforehand: it is called for every hop of every call."""
        random, plus = rng.random, self.plus
        if self.kind == "uniform":
            low, width = self.plus + self.numbers[0], self.numbers[1] - self.numbers[0]
            return lambda: low + width * random()
        if self.kind == "lognormal":
            return _lognormal(random, plus, *self.numbers).__next__
        if self.kind == "exponential":
            mean = self.numbers[0]
            return lambda: plus - mean * log(1.0 - random())
        if self.kind == "mix":
            return self._mixed(rng)
        value = plus + self.numbers[0]
        return lambda: value

    def _mixed(self, rng: Random) -> Sampler:
        whole = sum(share for share, _ in self.parts)
        bounds: list[tuple[float, Sampler]] = []
        below = 0.0
        for share, part in self.parts:
            below += share / whole
            bounds.append((below, part.sampler(rng)))
        random, last = rng.random, bounds[-1][1]

        def draw() -> float:
            at = random()
            for bound, sampler in bounds:
                if at < bound:
                    return sampler()
            return last()

        return draw


def _lognormal(random: Sampler, plus: float, median: float, sigma: float) -> Iterator[float]:
    """By Box and Muller, which gives two at a time."""
    while True:
        angle, radius = tau * random(), sigma * sqrt(-2.0 * log(1.0 - random()))
        yield plus + median * exp(radius * cos(angle))
        yield plus + median * exp(radius * sin(angle))


def constant(value: float) -> Chance:
    return Chance("constant", (float(value),))


NOTHING = constant(0)


def read(table: Table, key: str, default: Chance | None = None, *, amounts: bool = False, least: float = 0) -> Chance:
    """The distribution at `key`: of durations, or of amounts. Draws below `least` are refused here, not when they come."""
    value = table.values.get(key)
    if value is None:
        if default is None:
            raise table.refuse(f"{key} is missing", _RIGHT, key=key)
        return default
    chance = _chance(table, key, value, amounts)
    if _least(chance) < least:
        raise table.refuse(f"it could be {_least(chance):g}", f"it must be {least:g} or more", key=key)
    return chance


def _least(chance: Chance) -> float:
    if chance.kind == "mix":
        return min(_least(part) for _, part in chance.parts)
    return chance.plus + (chance.numbers[0] if chance.kind in ("constant", "uniform") else 0.0)


def _number(table: Table, key: str, value: object, amounts: bool) -> float:
    if amounts:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e15:
            raise table.refuse(f"{value!r} is not an amount", "it must be a number from 0 to 1e15", key=key)
        return float(value)
    with table.blame(key):
        return float(duration.parse(value, what=key, zero=True))  # type: ignore[arg-type]


def _chance(table: Table, key: str, value: object, amounts: bool) -> Chance:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise table.refuse(f"it is {type_of(value)}", _RIGHT, key=key)
        return constant(_number(table, key, value, amounts))
    inner = table.inner(key, value, _RIGHT)
    kinds = [kind for kind in KINDS if kind in value]
    if len(kinds) != 1:
        problem = f"it is {' and '.join(kinds)} at once" if kinds else "it does not say which distribution it is"
        inner.only((*_KEYS, "share"))
        raise inner.refuse(problem, f"it has one of {listed(KINDS)}: {_RIGHT}")
    (kind,) = kinds
    inner.only((kind, "plus", *(("sigma",) if kind == "lognormal" else ()), *(("share",) if "[" in key else ())))
    plus = _number(inner, "plus", value.get("plus", 0), amounts)
    if kind == "mix":
        return _mix(inner, amounts)
    if kind == "uniform":
        ends = value["uniform"]
        if not isinstance(ends, list) or len(ends) != 2:
            raise inner.refuse("it has no two ends", 'write it like uniform = ["2s", "10s"]', key="uniform")
        low, high = (_number(inner, f"uniform[{at}]", end, amounts) for at, end in enumerate(ends))
        if high < low:
            raise inner.refuse("the first end is above the second", "put the smaller one first", key="uniform")
        return Chance(kind, (low, high), plus)
    number = _number(inner, kind, value[kind], amounts)
    if kind == "lognormal":
        sigma = value.get("sigma")
        if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 <= sigma <= 10:
            problem = "sigma is missing" if sigma is None else f"{sigma!r} is not a sigma"
            raise inner.refuse(problem, "it must be a number from 0 to 10, like 0.8", key="sigma")
        return Chance(kind, (number, float(sigma)), plus)
    return Chance(kind, (number,), plus)


def _mix(table: Table, amounts: bool) -> Chance:
    entries = table.values["mix"]
    if not isinstance(entries, list) or not entries or "plus" in table.values:
        raise table.refuse("it is no array of distributions", _RIGHT, key="mix")
    parts = []
    for at, entry in enumerate(entries):
        inner = table.inner(f"mix[{at}]", entry, _RIGHT)
        share = inner.values.get("share")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1e15:
            problem = "share is missing" if share is None else f"{share!r} is not a share"
            raise inner.refuse(problem, "it must be a number above 0: how often this part is drawn", key="share")
        parts.append((float(share), _chance(table, f"mix[{at}]", entry, amounts)))
    return Chance("mix", parts=tuple(parts))
