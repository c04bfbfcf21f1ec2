"""The script that decides on a Redis server: the files of `lua/`, one after the other."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from pathlib import Path

from ...kernel.model import OUTCOMES

#: The kinds of limit that the script has, a file of `lua/` each.
KINDS = ("bucket", "window", "quota", "concurrency")

#: The parts of the script, each of one file or of several, in this order: each uses what stands in those before it.
PARTS = {
    "names": ("names",),
    "records": ("records/spaces", "records/order", "records/write"),
    "limits": ("limits",),
    **{kind: (kind,) for kind in KINDS},
    "plan": ("overrides", "plan"),
    "line": ("line/state", "line/ahead", "line/sessions", "line/standing", "line/serving"),
    "commands": ("commands/base", "commands/admit", "commands/settle", "commands/stamp"),
    "batch": ("batch",),
    "changes": ("changes",),
    "main": ("main",),
}

#: How a part becomes text. One that stands for itself is in the main chunk. One that few calls need makes its functions
#: when `<name>_module()` is first called, which returns the table of that name. All others are each the body of a function
#: that is called at once: `names.lua` says why.
PLAIN = ("names", "main")
ON_DEMAND = ("line", "changes")

_MODULE = """
local made_{name} = false
local function {name}_module()
if made_{name} then return made_{name} end
local {name} = {{}}
made_{name} = {name}
{part}
return {name}
end
"""
_BODY = """
do local function {name}_file()
{part}
end {name}_file() end
"""


def _outcomes() -> str:
    """The kernel's table of outcomes as a table of Lua: the inside of its braces."""
    rows = []
    for name, outcome in OUTCOMES.items():
        flags = [flag for flag in ("answered", "pauses", "refunds") if getattr(outcome, flag)]
        rows.append(f"{name} = {{{', '.join([*(f'{flag} = true' for flag in flags), f'adapts = {outcome.adapts}'])}}}")
    return ", ".join(rows)


@cache
def _body() -> str:
    folder = Path(__file__).parent / "lua"
    parts = []
    for name, files in PARTS.items():
        part = "\n".join((folder / f"{file}.lua").read_text(encoding="utf-8") for file in files)
        part = part.replace("--[[OUTCOMES]]", _outcomes())
        form = "{part}" if name in PLAIN else _MODULE if name in ON_DEMAND else _BODY
        parts.append(form.format(name=name, part=part))
    return "\n".join(parts)


@cache
def text() -> str:
    """What `SCRIPT LOAD` is given: for every server there is."""
    return _body() + "\nreturn main(KEYS, ARGV)\n"


@cache
def digest() -> str:
    """What `EVALSHA` is given."""
    return sha1(text().encode()).hexdigest()


@cache
def function() -> str:
    """What `FCALL` is given; each version of the script has a name of its own, so that several can be in use."""
    return f"headgate_{digest()[:12]}"


@cache
def library() -> str:
    """What `FUNCTION LOAD` is given, on servers that know it (Redis 7, Valkey): the script, made ready once."""
    # While it is loaded a library has nothing of the language but `redis`: it is made at its first call.
    return (
        f"#!lua name={function()}\nlocal main\nlocal function make()\n{_body()}\nreturn main\nend\n"
        f"redis.register_function('{function()}', function(keys, args)\n"
        f"  main = main or make()\n  return main(keys, args)\nend)\n"
    )


def tag(gate: str, prefix: str = "") -> str:
    """What every key of a gate begins with. In a cluster they are all in one slot."""
    return f"{prefix}hg:{{{gate}}}"


def channel(session: str, prefix: str = "") -> str:
    """Where the script publishes which tickets of a process to wake; `wire.wakes` reads it."""
    return f"{prefix}hg:wake:{session}"
