"""PURE. How commands travel: letters, scopes and fields, in the one table that both wires and a guard's reader go by."""

from __future__ import annotations

from dataclasses import dataclass

from .admit import Admit, Stand
from .change import Configure, Pause, Reset, Tighten
from .peek import Peek
from .renew import Extend, Renew
from .settle import Cancel, Release, Settle
from .stamp import Stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .base import Command

#: The bits of the field `bits` of an ask: it waits; its id is on record; only the limits decide about it.
WAITS, REMEMBERED, PLAIN = 1, 2, 4


@dataclass(frozen=True, slots=True)
class CommandForm:
    """How one command is sent to a guard, and to the script on Redis.

    A field is an attribute of the command and travels as it is, except for these, for which each wire has an expression of
    its own: `policy`; `plan`, which over HTTP takes four places (policy, class, costs, key); `asked`, a plan or None;
    `bits`; `actual`; `lease_rows`, the leases of a heartbeat, which begin with a plan; and for the script `ref`, a plan
    without its key; `keyed`, `held` and `attempted`, whether there is a key, a holder and an attempt; `everything`, a plan
    of all limits.
    """

    #: What a guard's reader of it is called (`service/store_protocol/read.py`).
    name: str
    #: What it begins with in a request to a guard.
    letter: str
    #: The scope that a guard's token needs for it.
    scope: str
    #: What follows the letter, in this order.
    fields: tuple[str, ...]
    #: How many of the last fields an older guard does not know: they are left out where they say nothing.
    later: int = 0
    #: What it begins with for the script on Redis, where that is another letter.
    script_letter: str = ""
    #: What follows the letter for the script, where that is not the fields without the gate, which it knows by its keys. Of
    #: an ask and an end it is what many have in common; ids, holders, attempts, moments, fences and keys are sent apart.
    script_fields: tuple[str, ...] = ()

    def for_script(self) -> tuple[str, tuple[str, ...]]:
        """The letter and the fields of the script."""
        fields = self.script_fields or tuple(field for field in self.fields if field != "gate")
        return self.script_letter or self.letter, fields


_ASK = CommandForm(
    "admit", "a", "acquire", ("plan", "id", "holder", "lease", "bits", "session", "latest", "attempt"), later=1,
    script_fields=("ref", "keyed", "lease", "plain", "waits", "remembered", "latest", "session", "held", "attempted"),
)  # fmt: skip

#: Command → how it travels. The letters and the order of fields are read by other versions: a new field goes to the end.
FORMS: dict[type[Command], CommandForm] = {
    Admit: _ASK,
    Stand: _ASK,
    Settle: CommandForm(
        "settle", "e", "acquire",
        ("plan", "at", "id", "outcome", "remembered", "retry_after", "actual", "confirmed", "worth", "fence"), later=1,
        script_fields=("ref", "keyed", "outcome", "remembered", "retry_after", "actual", "confirmed", "worth"),
    ),
    Release: CommandForm("release", "r", "acquire", ("policy", "id", "outcome", "retry_after", "actual", "ago"), later=1),
    Cancel: CommandForm("cancel", "c", "acquire", ("policy", "id", "attempt", "answered"), later=2),
    Renew: CommandForm(
        "renew", "n", "acquire", ("gate", "session", "tickets", "lease_rows"),
        script_fields=("session", "lease_rows", "tickets"),
    ),
    Extend: CommandForm("extend", "t", "acquire", ("policy", "id", "length"), script_letter="l"),
    Stamp: CommandForm("stamp", "s", "acquire", ("policy", "id", "asked", "at", "ago", "fence")),
    Pause: CommandForm("pause", "u", "acquire", ("gate", "length", "reason")),
    Peek: CommandForm(
        "peek", "p", "observe", ("policy", "asked", "leases", "waiters", "keys", "top", "search"),
        script_fields=("policy", "asked", "leases", "everything", "waiters", "keys", "top", "search"),
    ),
    Configure: CommandForm(
        "configure", "o", "configure", ("gate", "member", "value", "length", "reason", "tightened"), later=3,
    ),
    Tighten: CommandForm("tighten", "i", "acquire", ("gate", "member", "value", "configured", "length", "reason")),
    Reset: CommandForm("reset", "x", "configure", ("gate", "limit")),
}  # fmt: skip


def writer(
    fields: tuple[str, ...], forms: dict[str, str], parameters: str = "", names: dict[str, Any] | None = None
) -> Any:
    """A function of `command`, and of more parameters, that makes a tuple of the values of these fields.

    `forms` has the expressions of those that do not travel as they are, `names` what the expressions use. It is made of
    source text, as the methods of a dataclass are: a loop over the fields would take twice as long for every command.
    """
    values = "".join(f"{forms.get(field, f'command.{field}')}, " for field in fields)
    return eval(f"lambda command, {parameters}: ({values})", names or {})
