"""PURE. Which hosts a client's gate is for."""

from __future__ import annotations

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Hosts:
    """The hosts that match: `api.example.com`, `*.example.com` (what is below it, not itself), with `:8080` that port only.

    None matches every host. Letter case does not count.
    """

    __slots__ = ("_exact", "_suffixes", "every")

    def __init__(self, hosts: str | Iterable[str] | None) -> None:
        given = [hosts] if isinstance(hosts, str) else [] if hosts is None else list(hosts)
        #: Whether there is nothing to match.
        self.every = hosts is None or "*" in given
        self._exact: set[tuple[str, int | None]] = set()
        self._suffixes: list[tuple[str, int | None]] = []
        if hosts is not None and not given:
            raise InvalidInput("hosts names no host; leave it out for every host")
        for pattern in given:
            if pattern == "*":
                continue
            name, port = _parsed(pattern)
            if name.startswith("*."):
                self._suffixes.append((name[1:], port))
            else:
                self._exact.add((name, port))

    def match(self, host: str, port: int | None) -> bool:
        """Whether a request to this host and port (None: the scheme's own) takes a permit."""
        if self.every:
            return True
        host = host.lower().rstrip(".")
        if (host, None) in self._exact or (host, port) in self._exact:
            return True
        return any(host.endswith(suffix) and wanted in (None, port) for suffix, wanted in self._suffixes)


def _parsed(pattern: object) -> tuple[str, int | None]:
    if not isinstance(pattern, str):
        raise InvalidInput(f"a host is a text such as 'api.example.com' or '*.example.com', not {pattern!r}")
    host, port = pattern.strip().lower(), None
    refusal = InvalidInput(
        f"hosts: {pattern!r} is no host; write 'api.example.com', '*.example.com' or 'localhost:8080', without a "
        f"scheme and a path"
    )
    if "/" in host:
        raise refusal
    if host.startswith("[") and "]" in host:
        host, _, rest = host[1:].partition("]")
        number = rest.removeprefix(":")
    elif host.count(":") == 1:
        host, _, number = host.partition(":")
    else:
        number = ""
    if number:
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise InvalidInput(f"hosts: {pattern!r} has no port between 1 and 65535 after its colon")
        port = int(number)
    plain = host.removeprefix("*.")
    if not plain or "*" in plain or any(sign in plain for sign in "/?#@ \t"):
        raise refusal
    return host.rstrip("."), port


def host_and_port(url: str) -> tuple[str, int | None]:
    """The host of a URL, and its port or that of its scheme. Of what is no URL: nothing."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "", None
    return parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)
