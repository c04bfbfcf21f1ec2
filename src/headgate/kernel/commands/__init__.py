"""PURE. The commands: each is a value with an `apply(now, records)` that is atomic in every store.

`now` is the store's time in microseconds; `records` is the state of the one gate that the command names. A reply is a
value: a `Decision` for an ask, a small object for everything else, or an error, which the store hands back instead of
raising so that one bad command does not spoil a batch.
"""

from __future__ import annotations

from .admit import Admit, Stand, admit
from .base import Command
from .change import Configure, Pause, Reset, Tighten
from .peek import Peek
from .renew import Extend, Renew
from .settle import Cancel, Release, Settle, end
from .stamp import Stamp
from .table import FORMS

__all__ = [
    "FORMS",
    "Admit",
    "Cancel",
    "Command",
    "Configure",
    "Extend",
    "Pause",
    "Peek",
    "Release",
    "Renew",
    "Reset",
    "Settle",
    "Stamp",
    "Stand",
    "Tighten",
    "admit",
    "end",
]
