"""Where the state of gates lives, one file per store. A new store is one file and one line in `SCHEMES`."""

from __future__ import annotations

import os
import re
import threading

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base import Store

#: URL scheme → (module, function that opens a URL, the extra that brings its driver)
SCHEMES: dict[str, tuple[str, str, str | None]] = {
    "memory": ("headgate.stores.memory", "open_url", None),
    "sqlite": ("headgate.stores.sqlite", "open_url", None),
    "redis": ("headgate.stores.redis", "open_url", "redis"),
    "rediss": ("headgate.stores.redis", "open_url", "redis"),
    "redis+cluster": ("headgate.stores.redis", "open_url", "redis"),
    "redis+sentinel": ("headgate.stores.redis", "open_url", "redis"),
    "unix": ("headgate.stores.redis", "open_url", "redis"),
    "dynamodb": ("headgate.stores.dynamodb", "open_url", "aws"),
    "http": ("headgate.stores.http", "open_url", None),
    "https": ("headgate.stores.http", "open_url", None),
}

#: Schemes whose URL is the path of a file, and options of any URL that name one.
PATHS = frozenset({"sqlite"})
FILES = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ca"})

#: What may be repeated of a URL with an unknown scheme.
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}").fullmatch

_open: dict[str, Store] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def open_store(url: str) -> Store:
    """The store of a URL. The same URL gives the same store within a process, so that its gates share one state.

    A relative path in it starts at the working directory.
    """
    from importlib import import_module

    if not isinstance(url, str):
        raise InvalidInput(f"a store is a URL such as 'sqlite:///headgate.db' or a store object, not {url!r}")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        # What follows the scheme may hold a password, and so may the whole text where there is no scheme.
        given = f"'{scheme}://…'" if separator and SCHEME(scheme) else "this URL"
        raise InvalidInput(f"there is no store for {given}; a store URL begins with one of {known}")
    url = absolute(url)
    with _lock:
        store = _open.get(url)
        if store is None:
            module, function, extra = SCHEMES[scheme]
            try:
                opener = getattr(import_module(module), function)
            except ImportError as error:
                if extra is None:
                    raise
                from ..extras import how_to_install

                raise InvalidInput(f"{scheme}:// needs a driver: {how_to_install(extra)} ({error})") from error
            store = _open[url] = opener(url)
        return store


def absolute(url: str, folder: str | None = None) -> str:
    """A store's URL whose relative paths start at `folder`, by default at the working directory.

    A URL that names no file is returned as it is, and so is one that its store will refuse.
    """
    head, separator, query = url.partition("?")
    scheme, _, rest = head.partition("://")
    if (scheme not in PATHS and not query) or "\0" in url:
        return url
    from urllib.parse import quote, unquote

    folder = os.getcwd() if folder is None else folder
    path = unquote(rest[1:])
    if scheme in PATHS and rest.startswith("/") and path and path != ":memory:" and not path.endswith("/"):
        head = url_of(scheme, os.path.join(folder, path))
    options = query.split("&")
    for place, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name in FILES and value:
            options[place] = f"{name}{equals}{quote(os.path.join(folder, unquote(value)), safe='/')}"
    return f"{head}{separator}{'&'.join(options)}"


def url_of(scheme: str, path: str) -> str:
    """The URL of a store in a file. Only what would end the path or be decoded is written in another way."""
    return f"{scheme}:///{os.path.abspath(path).replace('%', '%25').replace('?', '%3F')}"


def forget_store(store: Store) -> None:
    """A store was closed: the next `open_store` of its URL opens another."""
    with _lock:
        if _open.get(store.url) is store:
            del _open[store.url]
