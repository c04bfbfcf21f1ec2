"""A table of a configuration file that knows where it stands, so that every refusal can say so."""

from __future__ import annotations

import os
from contextlib import contextmanager

from .. import duration
from ..errors import ConfigError, InvalidInput

TYPE_CHECKING = False  # mypy takes this name for typing's, so `typing` stays unimported
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

LARGEST = 1 << 20
"""Bytes that a file may have. People write a few thousand; more is a file of another kind."""


def read_text(file: str, remedy: str) -> str:
    """The text of a file that people write. Raises `ConfigError`, or `FileNotFoundError`: the caller knows what to make.

    A device or a pipe may never end, or never begin, so it is not so much as opened.
    """
    if os.path.exists(file) and not os.path.isfile(file) and not os.path.isdir(file):
        raise ConfigError("it is a device, a pipe or a socket", file=file, remedy="it must be a regular file")
    try:
        with open(file, "rb") as stream:
            raw = stream.read(LARGEST + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"it cannot be read: {reason}", file=file, remedy=remedy) from error
    if len(raw) > LARGEST:
        raise ConfigError("it is larger than 1 MiB", file=file, remedy="it must be a file that people write")
    try:
        return raw.decode("utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as error:
        raise ConfigError(f"it is not UTF-8 text ({error})", file=file, remedy="save it as UTF-8") from None


class Table:
    """The values of one TOML table, with the file and the path (`gates.adobe.limits[0]`) that lead to it.

    The reading methods give a value of the right type, or raise `ConfigError` with file, path and remedy.
    """

    __slots__ = ("file", "path", "values")

    def __init__(self, file: str, path: str, values: dict[str, Any]) -> None:
        self.file = file
        self.path = path
        self.values = values

    @property
    def folder(self) -> str:
        """Where the file lies: what a relative path in it starts at."""
        return os.path.dirname(os.path.abspath(self.file))

    def at(self, key: str | None) -> str | None:
        """The path of a key of this table, written as TOML would; of the table itself for None."""
        if key is None:
            return self.path or None
        name, bracket, index = key.partition("[")
        if not name or not set(name) <= _BARE or (bracket and not index.rstrip("]").isdigit()):
            name, bracket, index = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"', "", ""
        return f"{self.path}{'.' if self.path else ''}{name}{bracket}{index}"

    def refuse(self, problem: str, remedy: str, *, key: str | None = None) -> ConfigError:
        return ConfigError(problem, file=self.file, path=self.at(key), remedy=remedy)

    @contextmanager
    def blame(self, key: str | None = None) -> Iterator[None]:
        """Give what a constructor refuses inside the block this file and path."""
        try:
            yield
        except ConfigError:
            raise
        except InvalidInput as error:
            raise ConfigError(str(error), file=self.file, path=self.at(key)) from error

    def only(self, known: Iterable[str], intro: str = "the keys here are") -> None:
        """Refuse the first key that is not known."""
        known = list(known)
        for key, value in self.values.items():
            if key in known:
                continue
            remedy = f"{did_you_mean(key, known)}{intro} {listed(known)}"
            if isinstance(value, dict) and "limits" in value:
                whole = f"{self.path}.{key}".removeprefix("gates.")
                remedy = f'a name with a dot in it is written in quotes: [gates."{whole}"]'
            raise self.refuse(f"{key!r} is unknown", remedy, key=key)

    def inner(self, key: str, value: object, right: str) -> Table:
        """`value`, which stands at `key`, as a table of its own."""
        if not isinstance(value, dict):
            raise self.refuse(f"it is {type_of(value)}", right, key=key)
        return Table(self.file, self.at(key) or "", value)

    def table(self, key: str, right: str = "it must be a table") -> Table:
        """The table at `key`; an empty one where there is none."""
        return self.inner(key, self.values.get(key, {}), right)

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(f"it is {type_of(value)}", "it must be a string", key=key)
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(key)
        if value is None:
            return default
        if value not in allowed:
            remedy = f"{did_you_mean(value, allowed)}it must be {listed(allowed, 'or')}"
            raise self.refuse(f"{value!r} is not one of its values", remedy, key=key)
        return value

    def duration(self, key: str, *, zero: bool = False) -> str | float | None:
        """The duration at `key` as it was written, after a look at whether it is one."""
        value = self.values.get(key)
        if value is not None:
            with self.blame(key):
                duration.parse(value, what=key, zero=zero)
        return value


_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def listed(names: Iterable[str], word: str = "and") -> str:
    """`a, b and c`."""
    *most, last = list(names)
    return f"{', '.join(most)} {word} {last}" if most else last


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'limits'? `, or nothing where nothing known is near."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def type_of(value: object) -> str:
    """What TOML calls the type of a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, words in ((str, "a string"), (int | float, "a number"), (list, "an array"), (dict, "a table")):
        if isinstance(value, kind):
            return words
    return "a date or time"
