"""What a gate tells of itself, over HTTP: both the members and their schema follow from the fields of `Usage`."""

from __future__ import annotations

from dataclasses import fields

from ...kernel.model import LimitUsage, Usage, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "number", "minimum": 0}
YES: Schema = {"type": "boolean"}


def or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


#: By the type of a field.
_TYPES: dict[Any, Schema] = {
    "str": TEXT,
    "str | None": or_null(TEXT),
    "int": WHOLE,
    "float": NUMBER,
    "float | None": or_null(NUMBER),
}

#: The members of a gate's usage that say whether it is paused.
PAUSED = ("gate", "paused_for", "pause_reason")


def members(usage: Usage) -> dict[str, Any]:
    """A gate's usage as clients see it. Times are seconds from now; a text that says nothing is null."""
    shown = {}
    for field in fields(usage):
        if field.metadata.get("http", True):
            value = getattr(usage, field.name)
            shown[field.name] = None if value == "" else plain(value)
    return shown


def schemas(usage: type[Usage] | type[LimitUsage], /, **given: Schema) -> dict[str, Schema]:
    """The schema of each member; `given` are those of members that are no numbers or texts, or not any."""
    made = {}
    for field in fields(usage):
        if not field.metadata.get("http", True):
            continue
        schema = given.get(field.name) or _TYPES[field.type]
        if field.metadata.get("seconds"):
            schema = or_null(SECONDS)
        elif field.default == "":
            schema = or_null(TEXT)
        made[field.name] = {**schema, "description": field.metadata["about"]}
    return made
