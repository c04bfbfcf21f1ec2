"""Limits that an upstream tells in its answers, and that may only tighten what is configured."""

from __future__ import annotations

import re
from contextlib import suppress
from time import monotonic

from .. import duration
from ..errors import HeadgateError, InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    from ..gate.base import Duration
    from .answers import Answer

    Steps = Generator[Callable[[], Any], Any, None]

_ITEM = re.compile(r'^\s*(?:"([^"]*)"|([\w.-]+))?\s*(.*)$')


class Discovery:
    """Reads limits from the headers of answers, and has the whole fleet keep to those that are lower than configured.

    `headers` maps the name of a limit of the gate to the header that tells its value: `{"rpm": "x-ratelimit-limit"}`. Of
    `ratelimit-policy` the first policy is read, or the one that is named: `"ratelimit-policy:burst"`; a value for another
    window than the limit's is converted to it. A lower value is a tightening of the gate (`gate.tighten`) that ends by
    itself after `expires_in`, and is renewed while answers say so. A higher one changes nothing, unless `may_raise` is set:
    then it is an override (`gate.set_limit`), with the same end.
    """

    def __init__(self, headers: Mapping[str, str], *, expires_in: Duration = "10m", may_raise: bool = False) -> None:
        if not hasattr(headers, "items") or not headers:
            raise InvalidInput(f"headers maps limits to headers, as in {{'rpm': 'x-ratelimit-limit'}}, not {headers!r}")
        for limit, header in headers.items():
            if not isinstance(limit, str) or not isinstance(header, str) or not header:
                raise InvalidInput(f"headers maps names of limits to names of headers, not {limit!r} to {header!r}")
        self._headers = {limit: header.lower() for limit, header in headers.items()}
        self._expires_in_s = duration.parse(expires_in, what="expires_in") / 1e6
        self._may_raise = may_raise

    def on(self, gate: Any) -> Callable[[Answer], Steps]:
        """What reads an answer for a gate: steps that tell its store, where there is something to tell."""
        known = {limit.name: limit for limit in gate.policy.limits}
        for name in self._headers:
            if name not in known:
                raise InvalidInput(f"discover: gate {gate.name!r} has no limit {name!r}; it has {', '.join(known)}")
        #: Limit → the value that was told last, and when it is to be told again.
        told: dict[str, tuple[float, float]] = {}

        def discover(answer: Answer) -> Steps:
            for name, header in self._headers.items():
                said = published(answer.headers, header)
                if said is None:
                    continue
                value, window_s = said
                limit = known[name]
                own_s = limit.window_s()
                if window_s is not None and own_s:
                    value *= own_s / window_s
                if value <= 0 or (value >= limit.limit and not (self._may_raise and value > limit.limit)):
                    continue
                last, again_at = told.get(name, (float("inf"), 0.0))
                if value == last and monotonic() < again_at:
                    continue
                told[name] = (value, monotonic() + self._expires_in_s / 2)
                yield from self._tell(
                    gate, name, value, value > limit.limit, f"{header}: {answer.headers[_plain(header)]}"
                )

        return discover

    def _tell(self, gate: Any, name: str, value: float, higher: bool, reason: str) -> Steps:
        change = gate.set_limit if higher else gate.tighten
        with suppress(HeadgateError):  # the answer is the caller's all the same
            yield lambda: change(name, value, expires_in=self._expires_in_s, reason=reason[:200])


def _plain(header: str) -> str:
    return header.partition(":")[0]


def published(headers: Mapping[str, str], header: str) -> tuple[float, float | None] | None:
    """PURE. The limit that a header tells, and the seconds it is for where that is told too; None where it tells nothing.

    Reads `100`, `100, 100;w=60`, `"default";q=100;w=60` and `default;q=100;w=60`; `header:name` wants the policy so named.
    """
    plain, _, wanted = header.partition(":")
    for item in headers.get(plain, "").split(","):
        found = _ITEM.match(item)
        assert found is not None  # it matches anything
        name = found[1] if found[1] is not None else found[2] or ""
        fields = dict(part.strip().split("=", 1) for part in found[3].split(";") if "=" in part)
        if wanted and name != wanted:
            continue
        value = _positive(fields.get("q", "")) or _positive(name)
        if value is not None:
            return value, _positive(fields.get("w", ""))
    return None


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < 1e15 else None
