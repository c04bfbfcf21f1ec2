"""Django signals of the app, and the one that a project may send itself."""

from __future__ import annotations

from django.dispatch import Signal

#: A limit was reached. Arguments: `refused` (a `Refused`: limit, used, value, organization, shadow …), `execution_id`.
limit_reached = Signal()

#: A slot was released. Arguments: `execution_id`, `ended` (False where there was none to end).
slot_released = Signal()

#: A run that a worker keeps has lost its slot: its lease had ended before. Arguments: `execution_id`.
slot_lost = Signal()

#: SENT BY THE PROJECT: a run has ended, its slot is released after commit. Arguments: `execution_id`, and `using` where
#: the transaction is not one of the default database.
run_finished = Signal()
