"""Shapes of bodies and parameters: each checks what comes in, and is the schema that the reference shows.

One table for both, so that the reference cannot promise what the check refuses. A gate's own units, keys and classes are
checked by the gate.
"""

from __future__ import annotations

import re
from math import isfinite

from ...http.problems import Problem
from ...kernel.limits.base import NAME_RULE
from ...kernel.model import OUTCOMES
from ...kernel.plan import KEY_ALPHABET, KEY_RULE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Schema = dict[str, Any]

#: The largest number that is accepted, and the smallest above 0.
MOST, LEAST = 1e15, 1e-9

GATE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
KEY_PATTERN = r"^[A-Za-z0-9._:@/+~=-]{1,200}$"
#: An id stands in paths, so it has no slash.
ID_PATTERN = r"^[A-Za-z0-9._:@+~=-]{1,100}$"
#: The gate, the milliseconds of the lease where the ask named them, and the id, which a gate in another process may have
#: made.
PERMIT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(![0-9]{1,15})?:[A-Za-z0-9._:@/+~=,-]{1,400}$"
is_name = re.compile(GATE_PATTERN[1:-1]).fullmatch
is_permit = re.compile(PERMIT_PATTERN[1:-1]).fullmatch
ID_SIGNS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@+~=-"


def wrong(name: str, right: str, value: object) -> Problem:
    """The Problem for a value that is not right, with its place as a JSON pointer."""
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:80]}…"
    return Problem(422, "invalid-input", f"{name} must be {right}, not {shown}", pointer=f"/{name}")


class Field:
    """One member of an object: its schema and its check."""

    __slots__ = ("check", "schema")

    def __init__(self, check: Callable[[str, Any], None], about: str, **schema: Any) -> None:
        self.check = check
        self.schema: Schema = {**schema, "description": about}


def number(about: str, least: float, most: float = MOST, example: float | None = None, above: bool = False) -> Field:
    bound = f"{'above' if above else 'at least'} {least:g}"
    right = f"a number, {bound} and at most {most:g}"

    def check(name: str, value: Any) -> None:
        if value.__class__ is not float and value.__class__ is not int:
            raise wrong(name, right, value)
        if not (least < value <= most if above else least <= value <= most):
            raise wrong(name, right, value)

    schema: Schema = {"type": "number", "exclusiveMinimum" if above else "minimum": least, "maximum": most}
    if example is not None:
        schema["examples"] = [example]
    return Field(check, about, **schema)


def choice(about: str, *options: str) -> Field:
    def check(name: str, value: Any) -> None:
        if value not in options or value.__class__ is not str:
            raise wrong(name, f"one of {', '.join(options)}", value)

    return Field(check, about, type="string", enum=list(options))


def text(about: str, most: int, least: int = 1, example: str | None = None) -> Field:
    """Printable text for people."""

    def check(name: str, value: Any) -> None:
        if value.__class__ is not str or not least <= len(value) <= most or not value.isprintable():
            raise wrong(name, f"{least} to {most} printable characters", value)

    schema: Schema = {"type": "string", "minLength": least, "maxLength": most, "pattern": PRINTABLE}
    if example is not None:
        schema["examples"] = [example]
    return Field(check, about, **schema)


def _is_text(name: str, value: Any) -> None:
    if value.__class__ is not str:
        raise wrong(name, "text", value)


#: The part of `str.isprintable` that a pattern can express: the printable characters of ASCII.
PRINTABLE = r"^[ -~]*$"


def name(about: str) -> Field:
    def check(name: str, value: Any) -> None:
        if value.__class__ is not str or not is_name(value):
            raise wrong(name, NAME_RULE, value)

    return Field(check, about, type="string", pattern=GATE_PATTERN)


def _id(name: str, value: Any) -> None:
    if value.__class__ is not str or not 0 < len(value) <= 100 or value.strip(ID_SIGNS):
        raise wrong(name, "1 to 100 letters, digits or any of . _ : @ + ~ = -", value)


def amounts(about: str, zero: bool) -> Field:
    """A number of requests, or unit → amount."""
    bound = "at least 0" if zero else "above 0"

    def fits(value: Any) -> bool:
        if value.__class__ is not float and value.__class__ is not int:
            return False
        return (0 if zero else LEAST) <= value <= MOST and isfinite(value)

    def check(name: str, value: Any) -> None:
        if value.__class__ is dict:
            if value and all(fits(amount) for amount in value.values()):
                return
        elif fits(value):
            return
        raise wrong(name, f"a number of requests {bound}, or an object of unit and amount {bound}", value)

    amount = {"type": "number", "minimum": 0 if zero else LEAST, "maximum": MOST}
    named = {"type": "object", "additionalProperties": amount, "minProperties": 1}
    return Field(check, about, anyOf=[amount, named])


def _key(name: str, value: Any) -> None:
    if value.__class__ is not dict:
        raise wrong(name, "an object of key and value, both strings", value)
    for part in value.values():
        if part.__class__ is not str or not 0 < len(part) <= 200 or part.strip(KEY_ALPHABET):
            raise wrong(name, f"an object of key and value; each value is {KEY_RULE}", value)


COST = amounts("What it costs: a number of requests, or an object of unit and amount. Default: 1 request.", zero=False)
ACTUAL = amounts("What it really cost; the difference is given back or charged.", zero=True)
KEY = Field(
    _key,
    "Who asks, for limits that are kept by a key.",
    type="object",
    additionalProperties={"type": "string", "pattern": KEY_PATTERN},
    examples=[{"org": "acme"}],
)
PRIORITY = name("The priority class. Default: the highest.")
HOLDER = Field(
    _is_text,
    "Who holds it, for people to see. More than 200 characters are shortened, and what cannot be printed is escaped.",
    type="string",
    examples=["chunk_001.pdf"],
)
LEASE = number("Seconds that the lease lasts unless it is renewed. Default: the limit's own.", 0.01, 31_536_000)
ID = Field(
    _id,
    "Your own id for this ask. While its permit lives, the same ask again gets the same permit, or its place in the line; "
    "after its end it is a new ask.",
    type="string",
    pattern=ID_PATTERN,
)
ATTEMPT = Field(
    _id,
    "Your own name for this ask under its `id`, the same when you send the request again: it is never admitted twice then. "
    "Default: every request is an ask of its own.",
    type="string",
    pattern=ID_PATTERN,
)
WAIT = number("Seconds to wait for a turn. Default: 0, do not wait.", 0, 86_400)
OUTCOME = choice("How it ended. `unsent` gives it back.", *OUTCOMES)
SENT_FOR = number(
    "Told afterwards: the request was written so many seconds ago. Default: it is about to be written.", 0, 86_400
)
RETRY_AFTER = number("Seconds for which the upstream asked to wait: the gate is paused for so long.", 0, 86_400 * 31)


class Shape:
    """An object with known members and no others."""

    __slots__ = ("about", "fields", "required", "title")

    def __init__(self, title: str, about: str, fields: Mapping[str, Field], required: tuple[str, ...] = ()) -> None:
        self.title = title
        self.about = about
        self.fields = fields
        self.required = required

    def check(self, body: Mapping[str, Any]) -> None:
        """Raises Problem for the first member that is unknown, missing or not as it should be."""
        fields = self.fields
        for member, value in body.items():
            field = fields.get(member)
            if field is None:
                from ...config.toml_table import did_you_mean, listed

                known = f"the members are {listed(fields)}" if fields else "there are none here"
                raise Problem(
                    422, "invalid-input", f"{member!r} is unknown; {did_you_mean(member, fields)}{known}",
                    pointer=f"/{member}",
                )  # fmt: skip
            field.check(member, value)
        for member in self.required:
            if member not in body:
                raise Problem(422, "invalid-input", f"{member} is missing", pointer=f"/{member}")

    def schema(self) -> Schema:
        made: Schema = {
            "type": "object",
            "description": self.about,
            "properties": {member: field.schema for member, field in self.fields.items()},
            "additionalProperties": False,
        }
        if self.required:
            made["required"] = list(self.required)
        return made


ASK_FIELDS = {
    "cost": COST,
    "key": KEY,
    "priority": PRIORITY,
    "holder": HOLDER,
    "lease": LEASE,
    "id": ID,
    "attempt": ATTEMPT,
}

NOTHING = Shape("Nothing", "No body, or an empty object.", {})
ACQUIRE = Shape("Ask", "Who wants what. All of it is optional.", {**ASK_FIELDS, "wait": WAIT})
RESERVE = Shape(
    "Reserve",
    "What a time is wanted for.",
    {"cost": COST, "key": KEY, "priority": PRIORITY, "id": ID, "attempt": ATTEMPT},
)
RENEW = Shape("Renew", "How long the lease is to last.", {"lease": LEASE})
SENT = Shape("Sent", "When the request is written: now, or so long ago.", {"sent_for": SENT_FOR})
RELEASE_FIELDS = {"outcome": OUTCOME, "retry_after": RETRY_AFTER, "cost": ACTUAL}
RELEASE = Shape("Release", "How it ended.", {**RELEASE_FIELDS, "sent_for": SENT_FOR})
_REASON = text("Why; shown with the limit.", 200, least=0)
LIMIT = Shape(
    "Limit",
    "The value in force from the next decision on.",
    {
        "value": number("The new limit.", LEAST),
        "reason": _REASON,
        "expires_in": number("Seconds after which it ends by itself; without it, it stays.", 0.001, 86_400 * 365),
    },
    ("value",),
)
TIGHTEN = Shape(
    "Tighten",
    "What the limit is at most, and for how long. It never raises anything.",
    {
        "value": number("The limit is at most this.", LEAST),
        "expires_in": number("Seconds after which it ends by itself, a day at most.", 0.001, 86_400),
        "reason": _REASON,
    },
    ("value", "expires_in"),
)
PAUSE = Shape(
    "Pause",
    "For how long, and why.",
    {
        "seconds": number("No new grants for so long; without it, until the gate is resumed.", 0.001, 86_400 * 365),
        "reason": text("Shown to whoever asks what blocks.", 200, least=0),
    },
)
RESET = Shape("Reset", "Which limit; without one, the whole gate.", {"limit": name("The limit to reset.")})
GATE = name("The gate.")


def _permit(name: str, value: Any) -> None:
    if value.__class__ is not str or not is_permit(value):
        raise wrong(name, "the id of a permit, as in adobe:5f3c-12", value)


PERMIT = Field(_permit, "The id of the permit, as the grant told it.", type="string", pattern=PERMIT_PATTERN)


def _commands(name: str, value: Any) -> None:
    if value.__class__ is not list or not value:
        raise wrong(name, "an array of commands, at least one", value)


COMMANDS = Field(
    _commands,
    "Commands, each with `do` (acquire, reserve, sent, renew or release) and the members that it has alone.",
    type="array",
    minItems=1,
    items={"$ref": "#/components/schemas/Command"},
)
BATCH = Shape("Batch", "Many commands, decided together. Nobody waits.", {"commands": COMMANDS}, ("commands",))


def _unchecked(name: str, value: Any) -> None:
    """A parameter of the query, which its handler parses and checks."""


#: A number above 0 without exponent.
AMOUNT = r"([1-9][0-9]{0,11}(\.[0-9]{1,9})?|0\.[0-9]{0,8}[1-9])"
_UNIT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
COST_PATTERN = rf"^({_UNIT}=)?{AMOUNT}(,({_UNIT}=)?{AMOUNT})*$"
KEY_QUERY = Field(
    _unchecked,
    "Whose: the key and its value, as in org=acme; several with commas between.",
    type="string",
    pattern=r"^[A-Za-z0-9._-]{1,100}=[A-Za-z0-9._:@/+~=-]{1,200}$",
    examples=["org=acme"],
)
LIMIT_QUERY = Field(_unchecked, "A limit that is by a key. Default: each of them.", type="string", examples=["rpm"])
TOP_QUERY = Field(_unchecked, "How many keys of a limit. Default: 10.", type="integer", minimum=1, maximum=1000)
SEARCH_QUERY = Field(_unchecked, "Only keys that have this in them.", type="string", maxLength=200)
COST_QUERY = Field(
    _unchecked,
    "What it would cost: 2, or pu=3.2,requests=1.",
    type="string",
    pattern=COST_PATTERN,
    examples=["2"],
)
