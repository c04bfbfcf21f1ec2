"""Where the servers of a store are and how they are spoken to: by its URL, or by a client of redis-py that it was given."""

from __future__ import annotations

import re

from ... import duration
from ...errors import InvalidInput
from ..base import shown
from .client import connect, connect_async, traits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from urllib.parse import SplitResult

    from .client import Address, AsyncRedisConnection, RedisConnection

#: Seconds within which an answer must be there, all attempts together. A gate decides within 250 ms what to do without.
TIMEOUT = 0.2

#: What a URL may say after its question mark.
_COMMON = ("timeout", "prefix")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL = ("sentinel_username", "sentinel_password")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "redis": _COMMON,
    "rediss": (*_COMMON, *_TLS),
    "redis+cluster": (*_COMMON, "ssl", *_TLS),
    "redis+sentinel": (*_COMMON, "ssl", *_TLS, *_SENTINEL),
    "unix": (*_COMMON, "db"),
}

#: A prefix: no braces, which would make the keys of a gate belong to several slots of a cluster.
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class RedisEndpoint:
    """Where a store's servers are and how they are spoken to. Made by `of_url` or `of_client`."""

    shown: str
    kind: str
    options: dict[str, Any]
    #: The server; of a cluster, one that is asked about the others. With sentinels the first of them.
    start: Address
    cluster = False
    #: Those who know where the master is, by the name that they know it by; empty without.
    sentinels: tuple[Address, ...] = ()
    service = ""
    #: What keys and channels begin with: nothing, or a prefix and a colon.
    prefix = ""
    timeout = TIMEOUT

    def __init__(self, shown: str, kind: str) -> None:
        self.shown = shown
        self.kind = kind
        self.options = {}
        self.sentinel_options: dict[str, Any] = {}

    @property
    def fixed(self) -> bool:
        """Whether there is one server, and it is always the same."""
        return not (self.cluster or self.sentinels)

    # --- by a URL ---------------------------------------------------------------------------------------------------

    @classmethod
    def of_url(cls, url: str) -> RedisEndpoint:
        from urllib.parse import parse_qsl, unquote, urlsplit

        scheme, _, _ = url.partition("://")
        made = cls(shown(url), {"rediss": "tls", "unix": "unix"}.get(scheme, "plain"))
        made.cluster = scheme == "redis+cluster"
        try:
            parts = urlsplit(url)
            if scheme == "redis+sentinel":
                path = made._read_sentinels(parts)
            else:
                path = made._read_server(parts, parts.port or 6379)
        except ValueError as error:
            raise InvalidInput(f"{made.shown!r} is no URL of a Redis server: {error}") from None
        if parts.username:
            made.options["username"] = unquote(parts.username)
        if parts.password:
            made.options["password"] = unquote(parts.password)
        if scheme != "unix":
            made.options["db"] = made._database(path)
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in PARAMETERS[scheme]:
                known = ", ".join(PARAMETERS[scheme])
                raise InvalidInput(f"{made.shown!r}: {name} is not known; {scheme}:// takes {known}")
            made._option(name, value)
        return made

    def _read_server(self, parts: SplitResult, port: int) -> str:
        """Take the server from a URL. Returns the rest of its path, which is the database."""
        from urllib.parse import unquote

        if self.kind == "unix":
            if not parts.path or parts.netloc.rpartition("@")[2]:
                raise InvalidInput(f"{self.shown!r} names no socket; write unix:///run/redis/redis.sock")
            self.start = (unquote(parts.path), 0)
            return ""
        if not parts.hostname:
            raise InvalidInput(f"{self.shown!r} names no host; write {parts.scheme}://localhost:6379")
        self.start = (unquote(parts.hostname), port)
        return parts.path.strip("/")

    def _read_sentinels(self, parts: SplitResult) -> str:
        """Take the sentinels and the master's name from a URL. Returns the rest of its path, which is the database."""
        from urllib.parse import unquote, urlsplit

        right = "write redis+sentinel://one:26379,two:26379,three:26379/mymaster"
        found = []
        for place in parts.netloc.rpartition("@")[2].split(","):
            one = urlsplit(f"//{place}")
            if not one.hostname:
                raise InvalidInput(f"{self.shown!r} names no sentinel; {right}")
            found.append((unquote(one.hostname), one.port or 26379))
        self.sentinels = tuple(found)
        self.start = found[0]
        service, _, rest = parts.path.strip("/").partition("/")
        if not service:
            raise InvalidInput(f"{self.shown!r} does not say which master is meant; {right}")
        self.service = unquote(service)
        return rest

    def _database(self, path: str) -> int:
        if not path:
            return 0
        if self.cluster:
            raise InvalidInput(f"{self.shown!r}: a cluster has no databases; leave out /{path}")
        if not path.isdecimal():
            raise InvalidInput(f"{self.shown!r}: a database is a number, as in redis://localhost:6379/0, not {path!r}")
        return int(path)

    def _option(self, name: str, value: str) -> None:
        if name == "timeout":
            self.set_timeout(value)
        elif name == "prefix":
            self.set_prefix(value)
        elif name in ("ssl", "ssl_check_hostname"):
            if value not in ("true", "false"):
                raise InvalidInput(f"{self.shown!r}: {name} is true or false, not {value!r}")
            if name == "ssl":
                self.kind = "tls" if value == "true" else "plain"
            else:
                self.options[name] = value == "true"
        elif name == "db":
            self.options[name] = self._database(value)
        elif name == "ssl_cert_reqs" and value not in ("none", "optional", "required"):
            raise InvalidInput(f"{self.shown!r}: ssl_cert_reqs is none, optional or required, not {value!r}")
        elif name in _SENTINEL:
            self.sentinel_options[name.removeprefix("sentinel_")] = value
        else:
            self.options[name] = value

    def set_timeout(self, value: str | float) -> None:
        self.timeout = duration.parse(value, what=f"{self.shown}: timeout") / 1_000_000

    def set_prefix(self, value: str) -> None:
        if not isinstance(value, str) or not PREFIX.fullmatch(value):
            raise InvalidInput(
                f"{self.shown!r}: a prefix is 1 to 64 letters, digits and _ . : -, as in prefix=staging, not {value!r:.80}"
            )
        self.prefix = f"{value}:"

    # --- by a client ------------------------------------------------------------------------------------------------

    @classmethod
    def of_client(cls, client: object) -> RedisEndpoint:
        """As a client of redis-py is set up. Its time-outs and retries are not taken over."""
        traits = traits_of(client)
        host, port = traits.addresses[0]
        places = ",".join(f"{host}:{port}" for host, port in traits.addresses)
        database = f"/{traits.options['db']}" if traits.options.get("db") else ""
        if traits.kind == "unix":
            url = f"unix://{host}"
        elif traits.service:
            url = f"redis+sentinel://{places}/{traits.service}{database}"
        elif traits.cluster:
            url = f"redis+cluster://{host}:{port}"
        else:
            url = f"{'rediss' if traits.kind == 'tls' else 'redis'}://{host}:{port}{database}"
        made = cls(url, traits.kind)
        made.cluster = traits.cluster
        made.start = traits.addresses[0]
        made.options = traits.options
        if traits.service:
            made.sentinels, made.service = traits.addresses, traits.service
            made.sentinel_options = dict(traits.sentinel_options or {})
        return made

    # --- connecting -------------------------------------------------------------------------------------------------

    def _arguments(self, address: Address) -> dict[str, Any]:
        options = self.options
        if address in self.sentinels:
            # A sentinel has users and passwords of its own, and no databases; TLS is as the servers'.
            options = {
                name: value for name, value in options.items() if name.startswith("ssl_")
            } | self.sentinel_options
            options.pop("db", None)
        if self.kind == "unix":
            return {**options, "protocol": 2, "path": address[0]}
        return {**options, "protocol": 2, "host": address[0], "port": address[1]}

    def connect(self, address: Address, seconds: float) -> RedisConnection:
        """A connection to one server, within so many seconds."""
        return connect(self.kind, self._arguments(address), address, seconds, self.timeout)

    async def connect_async(self, address: Address) -> AsyncRedisConnection:
        """A connection on an event loop, which is made for as long as the caller awaits it."""
        return await connect_async(self.kind, self._arguments(address), address, self.timeout)
