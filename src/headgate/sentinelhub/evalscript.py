"""PURE. Reads what `setup()` of an evalscript returns, where that is a literal. Nothing is executed or guessed."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SETUP = re.compile(r"function\s+setup\s*\(\s*\)\s*\{|\bsetup\s*=\s*(?:function\s*)?\(\s*\)\s*(?:=>\s*)?\{")
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>[\[\]{}:,()])|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`$\\]*`)"""
    r"""|(?P<number>-?\d+(?:\.\d+)?)|(?P<word>[A-Za-z_$][\w$]*))""",
    re.DOTALL,
)
_NO_COMMENTS = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)|//[^\n]*|/\*.*?\*/""", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
#: Nesting that no setup has.
DEEPEST = 20


class NotLiteral(ValueError):
    """`setup()` is missing, or what it returns is computed: the message says which."""


def setup_of(script: str) -> dict[str, Any]:
    """What `setup()` returns, as Python values. Raises NotLiteral where it is anything but an object literal."""
    if not re.match(r"\s*//\s*VERSION\s*=\s*3", script):
        raise NotLiteral("it does not begin with //VERSION=3")
    text = _NO_COMMENTS.sub(lambda found: found[1] or " ", script)
    begins = [found.end() for found in _SETUP.finditer(text)]
    if len(begins) != 1:
        raise NotLiteral("it has no function setup()" if not begins else "it has several functions setup()")
    returned = re.compile(r"\breturn\b").search(text, begins[0])
    if returned is None:
        raise NotLiteral("setup() returns nothing")
    value = Reader(text, returned.end()).value()
    if not isinstance(value, dict):
        raise NotLiteral("setup() does not return an object")
    return value


class Reader:
    """A reader of JavaScript literals: objects, arrays, strings, numbers, true, false and null."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at

    def _next(self) -> tuple[str, str]:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            raise NotLiteral("what setup() returns is computed, not written out")
        self._at = found.end()
        return found.lastgroup, found[found.lastgroup]

    def value(self, depth: int = 0) -> Any:
        kind, text = self._next()
        if kind == "sign" and text == "(" and depth == 0:
            inside = self.value(1)
            self._expect(")")
            return inside
        if depth > DEEPEST:
            raise NotLiteral("what setup() returns is nested too deeply")
        if kind == "sign" and text == "{":
            return self._object(depth)
        if kind == "sign" and text == "[":
            return self._array(depth)
        if kind == "text":
            return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
        if kind == "number":
            return float(text)
        if kind == "word" and text in _WORDS:
            return _WORDS[text]
        raise NotLiteral(f"what setup() returns is computed ({text!r}), not written out")

    def _expect(self, wanted: str) -> None:
        _, text = self._next()
        if text != wanted:
            raise NotLiteral(f"what setup() returns is computed ({text!r}), not written out")

    def _peek(self) -> str:
        at = self._at
        _, text = self._next()
        self._at = at
        return text

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._peek() != "]":
            found.append(self.value(depth + 1))
            if self._peek() != ",":
                break
            self._next()
        self._expect("]")
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != "}":
            kind, name = self._next()
            if kind == "text":
                name = name[1:-1]
            elif kind != "word":
                raise NotLiteral(f"what setup() returns is computed ({name!r}), not written out")
            self._expect(":")
            found[name] = self.value(depth + 1)
            if self._peek() != ",":
                break
            self._next()
        self._expect("}")
        return found
