"""The `[serve]` table of a configuration: where a guard listens, its tokens, and its limits on requests."""

from __future__ import annotations

from dataclasses import dataclass

from .. import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .toml_table import Table

SERVE_KEYS: dict[str, str] = {
    "host": "the address to listen on; anything but loopback needs tokens",
    "port": "the port to listen on; 0 takes one that is free",
    "tokens": "the file with the hashes of the tokens, as `headgate token new` writes it",
    "history": "the file for the dashboard's history; by default beside a SQLite store, else none",
    "audit": "the file to which every change is appended, one JSON object a line",
    "proxies": "addresses or networks of the proxies whose `X-Forwarded-For` is believed",
    "request_timeout": "how long a request may take to arrive in full",
    "max_connections": "connections that may be open; never more than the limit of open files allows",
    "max_body": "bytes that a request's body may have",
    "max_batch": "commands that one batch may have",
    "max_wait": "the longest that one request may wait for its turn",
    "max_waiters": "requests that may wait at the same time",
    "max_keys": "distinct keys that may be asked for within ten minutes",
}

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8420


@dataclass(frozen=True, slots=True)
class Serve:
    """How a guard serves. Durations are in seconds; files are as they were written, beside the configuration."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    tokens: str | None = None
    audit: str | None = None
    history: str | None = None
    max_body: int = 65_536
    max_batch: int = 1000
    max_wait: float = 60.0
    max_waiters: int = 10_000
    max_keys: int = 100_000
    proxies: tuple[str, ...] = ()
    request_timeout: float = 10.0
    max_connections: int | None = None


def read_serve(table: Table) -> Serve:
    """The settings from their table. Raises `ConfigError`."""
    table.only(SERVE_KEYS)
    wait, request = table.duration("max_wait"), table.duration("request_timeout")
    host = table.text("host")
    if host is not None and not host.strip():
        raise table.refuse("it is empty", f'it must be an address such as "{DEFAULT_HOST}"', key="host")
    default = Serve()
    return Serve(
        host=DEFAULT_HOST if host is None else host,
        port=_whole(table, "port", default.port, 0, 65_535),
        tokens=table.text("tokens"),
        audit=table.text("audit"),
        history=table.text("history"),
        proxies=_networks(table, "proxies"),
        request_timeout=(
            default.request_timeout if request is None else duration.parse(request, what="request_timeout") / 1e6
        ),
        max_connections=_whole(table, "max_connections", 0, 1, 10_000_000) or None,
        max_body=_whole(table, "max_body", default.max_body, 1024, 1 << 30),
        max_batch=_whole(table, "max_batch", default.max_batch, 1, 100_000),
        max_wait=default.max_wait if wait is None else duration.parse(wait, what="max_wait") / 1e6,
        max_waiters=_whole(table, "max_waiters", default.max_waiters, 0, 10_000_000),
        max_keys=_whole(table, "max_keys", default.max_keys, 1, 100_000_000),
    )


def _whole(table: Table, key: str, default: int, least: int, most: int) -> int:
    value = table.values.get(key, default)
    if key not in table.values:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise table.refuse(
            f"{value!r} is not a number for it", f"it must be a whole number from {least} to {most}", key=key
        )
    return value


def _networks(table: Table, key: str) -> tuple[str, ...]:
    from ipaddress import ip_network

    values = table.values.get(key, [])
    right = 'it must be an array of addresses or networks: proxies = ["127.0.0.1", "10.0.0.0/8"]'
    if not isinstance(values, list):
        raise table.refuse(f"{values!r} is not an array", right, key=key)
    for value in values:
        try:
            if not isinstance(value, str):
                raise ValueError
            ip_network(value)
        except ValueError:
            raise table.refuse(f"{value!r} is not an address or a network", right, key=key) from None
    return tuple(values)
