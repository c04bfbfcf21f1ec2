"""What `headgate doctor` wants to know about a Redis server."""

from __future__ import annotations

from ..remote.jobs import AnswerTimeout, ConnectionLost
from .errors import ErrorReply
from .script import channel, function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    #: ok, note or wrong; what was found; what would mend it, or nothing.
    Finding = tuple[str, str, str]

#: The first version whose scripts can do what ours does.
OLDEST = (6, 2)


def examine(ask: Callable[..., Any], where: str, cluster: bool, prefix: str = "") -> Iterator[Finding]:
    """Findings about one server; `ask` sends it a command, `prefix` is what keys begin with."""
    try:
        info = _facts(ask("INFO"))
    except ErrorReply as error:
        yield ("note", f"{where} does not tell about itself: {error.text}", "allow INFO to its user")
        info = {}
    except (ConnectionLost, AnswerTimeout) as error:
        yield ("wrong", f"{where} cannot be reached: {error}", "")
        return
    if info:
        yield from _version(info, where)
        yield from _memory(info, where)
        yield from _persistence(info, where)
        yield from _role(info, where, cluster)
    yield from _functions(ask, where)
    yield from _time(ask, where)
    yield from _channels(ask, where, prefix)


def _facts(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}


def _version(info: dict[str, str], where: str) -> Iterator[Finding]:
    name, version = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", "")
    version = version or info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < OLDEST:
        yield ("wrong", f"{where} is {name} {version}, which is too old", "6.2 or newer is needed")
    else:
        yield ("ok", f"{where} is {name} {version}", "")


def _memory(info: dict[str, str], where: str) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        yield (
            "wrong",
            f"{where} forgets keys when its memory is full ({policy}), and limits with them",
            "maxmemory-policy noeviction, or a server of its own",
        )


def _persistence(info: dict[str, str], where: str) -> Iterator[Finding]:
    if info.get("aof_enabled") == "0":
        yield (
            "note",
            f"{where} writes no log: what counts is lost when it restarts, and rates come back slowly then",
            "appendonly yes keeps it, up to the last second",
        )


def _role(info: dict[str, str], where: str, cluster: bool) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield ("wrong", f"{where} is a replica", "the URL should lead to the master")
    if info.get("cluster_enabled") == "1" and not cluster:
        yield ("wrong", f"{where} belongs to a cluster", "begin the URL with redis+cluster://")


def _functions(ask: Callable[..., Any], where: str) -> Iterator[Finding]:
    for words in (("FUNCTION", "LOAD", ""), ("FCALL", function(), 0)):  # neither does anything: no code, and no gate
        try:
            ask(*words)
        except ErrorReply as error:
            unknown = "unknown" in error.text.lower()
            if unknown or error.kind == "permission":
                yield (
                    "note",
                    f"{where} decides with EVALSHA ({error.text}), which takes it about twice as long as a function",
                    "Redis 7, or Valkey" if unknown else "ACL SETUSER … +fcall +function|load",
                )
                return
        except (ConnectionLost, AnswerTimeout):
            return
    yield ("ok", f"{where} decides with FCALL: the script is kept as a function", "")


def _time(ask: Callable[..., Any], where: str) -> Iterator[Finding]:
    try:
        ask("EVAL", "return redis.call('TIME')", 0)
    except ErrorReply as error:
        yield (
            "note",
            f"{where} does not let scripts ask for TIME ({error.text}): decisions go by the clocks of the callers, set "
            f"by the server's, and never backwards",
            "allow TIME to its user",
        )
    except (ConnectionLost, AnswerTimeout):
        pass


def _channels(ask: Callable[..., Any], where: str, prefix: str) -> Iterator[Finding]:
    try:
        ask("EVAL", f"return redis.call('PUBLISH', '{channel('doctor', prefix)}', '')", 0)
    except ErrorReply as error:
        yield (
            "wrong",
            f"{where} does not let its user publish ({error.text}): waiters learn of their turn by heartbeats alone",
            f"ACL SETUSER … &{channel('*', prefix)}",
        )
    except (ConnectionLost, AnswerTimeout):
        pass
