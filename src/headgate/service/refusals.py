"""Tokens that were refused, in the log and in the audit file; bounded, so that a guesser cannot fill the disk."""

from __future__ import annotations

from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .audit import Audit
    from .proxies import Proxies
    from .tokens import Bearer
    from .web import Scope

#: At most so many lines in so many seconds. The next line after them says how many were left out.
LINES, SECONDS = 10, 60.0


class Refusals:
    """The refused tokens of one guard."""

    __slots__ = ("_audit", "_left_out", "_lines", "_proxies", "_turn_at")

    def __init__(self, audit: Audit, proxies: Proxies) -> None:
        self._audit = audit
        self._proxies = proxies
        self._lines = self._left_out = 0
        self._turn_at = 0.0

    def note(self, scope: Scope, bearer: Bearer | None, why: str) -> None:
        """Record that a request's token was refused. The token itself is not recorded: it may be a good one, mistyped."""
        if (now := monotonic()) >= self._turn_at:
            self._turn_at, self._lines = now + SECONDS, 0
        if self._lines >= LINES:
            self._left_out += 1
            return
        self._lines += 1
        # On the fast path the scope has headers alone.
        path = str(scope.get("path", ""))[:200]
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        self._audit.record_refusal(bearer, self._proxies.client_of(scope), path=path, why=why, **more)
