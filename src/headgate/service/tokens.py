"""Tokens: each allows to ask, observe or configure. Only their hashes are kept.

A token is 256 random bits, so one SHA-256 is enough: a slow hash (scrypt, argon2) protects secrets that can be guessed, and
on every request it would make the guard easy to flood.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from ..config.file import read_toml
from ..config.toml_table import Table, did_you_mean, listed, read_text
from ..errors import ConfigError
from ..kernel.limits import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Scope → what it allows.
SCOPES: dict[str, str] = {
    "acquire": "ask for permits, renew and release them",
    "observe": "see usage, holders, events and metrics",
    "configure": "change and reset limits, pause and resume",
}

PREFIX = "hg_"

#: Seconds between checks whether the file has changed.
CHECK_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Bearer:
    """The holder of a token, and the scopes that it has."""

    name: str
    scopes: frozenset[str]


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


class Tokens:
    """The tokens of a file. It is read again when it changes; while it cannot be read, the last tokens stay in force."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stamp = self._stat()
        self._by_hash = read_tokens(path)
        self._check_at = monotonic() + CHECK_EVERY
        #: Why the file could not be read again; None while all is well.
        self.error: ConfigError | None = None

    def __len__(self) -> int:
        return len(self._by_hash)

    def bearer_of(self, token: str) -> Bearer | None:
        """The holder of a token, or None. Takes as long for a wrong token as for a right one."""
        if (now := monotonic()) >= self._check_at:
            self._check_at = now + CHECK_EVERY
            self._reread()
        asked = digest(token)
        found: Bearer | None = None
        for known, bearer in self._by_hash.items():
            if hmac.compare_digest(known, asked):
                found = bearer
        return found

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _reread(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._by_hash = read_tokens(self.path)
            self.error = None
        except ConfigError as error:
            self.error = error


def read_tokens(path: str) -> Mapping[str, Bearer]:
    """Hash → holder. Raises `ConfigError` with the file and the place."""
    try:
        text = read_text(path, "it must be a file that this process may read")
    except FileNotFoundError:
        remedy = "make the first one with `headgate token new NAME --scope acquire`"
        raise ConfigError("there is no such file", file=path, remedy=remedy) from None
    top = Table(path, "", read_toml(text, path))
    top.only(("tokens",))
    found: dict[str, Bearer] = {}
    tokens = top.table("tokens")
    for name in tokens.values:
        table = tokens.table(name)
        with table.blame():
            check_name("token name", name)
        table.only(("sha256", "scopes", "created"))
        hashed = table.text("sha256") or ""
        if len(hashed) != 64 or set(hashed) - set("0123456789abcdef"):
            right = "it must be 64 hexadecimal digits, as `headgate token new` writes them"
            raise table.refuse("it is not a SHA-256", right, key="sha256")
        found[hashed] = Bearer(name, _scopes(table))
    return found


def _scopes(table: Table) -> frozenset[str]:
    scopes = table.values.get("scopes")
    right = f'it must be an array of scopes: scopes = ["acquire"]; there are {listed(SCOPES)}'
    if not isinstance(scopes, list) or not scopes:
        raise table.refuse("it names no scope", right, key="scopes")
    for scope in scopes:
        if scope not in SCOPES:
            raise table.refuse(
                f"there is no scope {scope!r}", f"{did_you_mean(str(scope), SCOPES)}{right}", key="scopes"
            )
    return frozenset(scopes)


def add_token(path: str, name: str, scopes: frozenset[str]) -> str:
    """Make a token, keep its hash in the file, and return the token: it cannot be read from the file."""
    from datetime import UTC, datetime

    known = read_tokens(path) if os.path.exists(path) else {}
    if any(bearer.name == name for bearer in known.values()):
        raise ConfigError(
            f"there is a token {name!r} already", file=path, remedy=f"revoke it first: `headgate token revoke {name}`"
        )
    check_name("token name", name)
    token = new_token()
    listed_scopes = ", ".join(f'"{scope}"' for scope in SCOPES if scope in scopes)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    entry = f'[tokens."{name}"]\nsha256 = "{digest(token)}"\nscopes = [{listed_scopes}]\ncreated = "{created}"\n'
    # Only the owner may read and write it: the hashes reveal no token, but another user must not add one.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(descriptor, "a", encoding="utf-8") as stream:
        stream.write(entry if not known else f"\n{entry}")
    return token


def revoke_token(path: str, name: str) -> bool:
    """Remove a token's hash from the file. False when there was none of that name."""
    known = read_tokens(path)
    if all(bearer.name != name for bearer in known.values()):
        return False
    with open(path, encoding="utf-8") as stream:
        values = read_toml(stream.read(), path)
    kept = []
    for other, entry in values["tokens"].items():
        if other != name:
            scopes = ", ".join(f'"{scope}"' for scope in entry["scopes"])
            created = f'created = "{entry["created"]}"\n' if "created" in entry else ""
            kept.append(f'[tokens."{other}"]\nsha256 = "{entry["sha256"]}"\nscopes = [{scopes}]\n{created}')
    beside = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside)  # left by a crash, or a link that somebody else has put there: it is not written through
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write("\n".join(kept))
    os.replace(beside, path)
    return True
