"""PURE. A file of prompts: what to make, and how the files are called."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from headgate import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A file's name: no folder, nothing hidden, nothing that a shell or a browser reads otherwise.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,150}")
KEYS = ("prompt", "filename", "name", "output")
RIGHT = 'write a list of texts, a list of {"prompt": …, "filename": …}, or {"x.png": "a prompt", …}'


class Prompt(NamedTuple):
    """One image to be made."""

    name: str
    text: str


def read_prompts(text: str, source: str) -> list[Prompt]:
    """The prompts of a JSON text; `source` is what messages call it. Anything that makes no sense is `InvalidInput`."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{source} is no JSON: {error}; {RIGHT}") from error
    entries: list[Any]
    if isinstance(given, dict):
        entries = [{"filename": name, "prompt": prompt} for name, prompt in given.items()]
    elif isinstance(given, list):
        entries = given
    else:
        raise InvalidInput(f"{source} is neither a list nor an object; {RIGHT}")
    if not entries:
        raise InvalidInput(f"{source} has no prompts; {RIGHT}")
    width = max(3, len(str(len(entries))))
    prompts = [
        _prompt(entry, f"{source}, entry {number}", f"{number:0{width}}.png") for number, entry in enumerate(entries, 1)
    ]
    names: dict[str, int] = {}
    for number, prompt in enumerate(prompts, 1):
        folded = prompt.name.casefold()
        if folded in names:
            raise InvalidInput(f"{source}: entries {names[folded]} and {number} are both called {prompt.name!r}")
        names[folded] = number
    return prompts


def _prompt(entry: Any, where: str, default: str) -> Prompt:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise InvalidInput(f"{where} is neither a text nor an object; {RIGHT}")
    for key in entry:
        if key not in KEYS:
            raise InvalidInput(f"{where} has {key!r}, which is none of {', '.join(KEYS)}")
    text = entry.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{where} has no prompt: it must be a text that says something, not {text!r}")
    given = [entry[key] for key in KEYS[1:] if key in entry]
    if len(given) > 1:
        raise InvalidInput(f"{where} has several names: give one of {', '.join(KEYS[1:])}")
    name = given[0] if given else default
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidInput(
            f"{where}: {name!r} is no name for a file here; use letters, digits, '.', '_', '-' and no folder"
        )
    return Prompt(name if "." in name else f"{name}.png", text.strip())
