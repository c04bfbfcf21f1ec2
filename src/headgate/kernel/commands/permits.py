"""PURE. Permits on record and the rows of leases: as named records here, as tuples in a store.

A stored tuple ends with the times of the confirmation and of the sent stamp only where there was one, so most are shorter.
"""

from __future__ import annotations

from collections import namedtuple

from ..model import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NamedTuple

    from ..plan import Policy, Ref
    from ..records import Records, Space

    class PermitRecord(NamedTuple):
        """What is kept of a permit under its id."""

        ref: Any
        at: int
        #: When its lease ends, or it did: for so long and REMEMBER more it is on record.
        ends: int
        fence: int
        leased: bool
        #: False while it lives, True, or TAKEN_BACK.
        ended: int
        worth_confirming: bool
        #: When it was confirmed; 0 if it was not.
        confirmed: int
        #: From when on it is charged since its sent stamp; 0 where that is its grant.
        sent: int

    class LeaseRow(NamedTuple):
        """What is kept of a lease under its id, with each limit of slots."""

        ref: Any
        at: int
        fence: int
        holder: str | None
        #: When its permit was confirmed; 0 if it was not.
        confirmed: int
        #: From when on its permit is charged since its sent stamp; 0 where that is its grant.
        sent: int
else:
    PermitRecord = namedtuple("PermitRecord", "ref at ends fence leased ended worth_confirming confirmed sent")
    LeaseRow = namedtuple("LeaseRow", "ref at fence holder confirmed sent")

#: A record from its parts: naming them takes longer.
_new = tuple.__new__

#: For how long an id is remembered after its permit ended.
REMEMBER = 60 * SECOND

#: How a permit on record has ended: False while it lives, True, or with its charge given back. Asked again, the last is a
#: new ask: to answer it with the old permit would let it pass uncharged.
TAKEN_BACK = 2

#: How many parts the stored tuple of a permit and of a lease has that was neither confirmed nor stamped.
UNCONFIRMED_PERMIT, UNCONFIRMED_LEASE = 7, 4

#: By how many parts a stored tuple is short of the record: what stands there then.
_MISSING = ((), (0,), (0, 0))


def read_permit(stored: Any) -> PermitRecord:
    return _new(PermitRecord, (*stored, *_MISSING[UNCONFIRMED_PERMIT + 2 - len(stored)]))


def read_lease(stored: Any) -> LeaseRow:
    return _new(LeaseRow, (*stored, *_MISSING[UNCONFIRMED_LEASE + 2 - len(stored)]))


def stored_permit(permit: PermitRecord) -> tuple[Any, ...]:
    return tuple(permit[: UNCONFIRMED_PERMIT + (2 if permit.sent else 1 if permit.confirmed else 0)])


def stored_lease(row: LeaseRow) -> tuple[Any, ...]:
    return tuple(row[: UNCONFIRMED_LEASE + (2 if row.sent else 1 if row.confirmed else 0)])


def permit_of(records: Records, id: str) -> PermitRecord | None:
    """The permit on record under an id."""
    stored = records.space("permits").get(id)
    return None if stored is None else read_permit(stored)


def put_permit(permits: Space, id: str, ref: Ref, at: int, expires: int, fence: int, worth: bool) -> None:
    """A new permit goes on record."""
    ends = expires or at
    permits.put(id, (ref, at, ends, fence, bool(expires), False, worth), ends + REMEMBER)


def end_permit(permits: Space, id: str, permit: PermitRecord, now: int, ended: int) -> None:
    """A permit on record has ended: it stays for REMEMBER, without the times of its confirmation and its stamp."""
    ref, at, _, fence, leased, _, worth, _, _ = permit
    permits.put(id, (ref, at, now, fence, leased, ended, worth), now + REMEMBER)


def lease_of(records: Records, policy: Policy, id: str) -> LeaseRow | None:
    """The lease of an id, with any limit of slots. An id that a gate made tells its key after a `~`."""
    key = dict(part.split("=", 1) for part in id.partition("~")[2].split(",") if "=" in part)
    for limit in policy.limits:
        if limit.leased:
            member = limit.name if limit.by is None else f"{limit.name}|{key.get(limit.by, '')}"
            if records.states.get(member) is not None and (found := records.leases[member].get(id)) is not None:
                return read_lease(found)
    return None
