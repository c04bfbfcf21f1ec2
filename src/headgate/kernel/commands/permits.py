"""PURE. Permits on record and the rows of leases: as named records here, as tuples in a store.

A stored tuple ends with the time of the confirmation only where there was one, so most are one number shorter.
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

    class LeaseRow(NamedTuple):
        """What is kept of a lease under its id, with each limit of slots."""

        ref: Any
        at: int
        fence: int
        holder: str | None
        #: When its permit was confirmed; 0 if it was not.
        confirmed: int
else:
    PermitRecord = namedtuple("PermitRecord", "ref at ends fence leased ended worth_confirming confirmed")
    LeaseRow = namedtuple("LeaseRow", "ref at fence holder confirmed")

#: A record from its parts: naming them takes longer.
_new = tuple.__new__

#: For how long an id is remembered after its permit ended.
REMEMBER = 60 * SECOND

#: How a permit on record has ended: False while it lives, True, or with its charge given back. Asked again, the last is a
#: new ask: to answer it with the old permit would let it pass uncharged.
TAKEN_BACK = 2

#: How many parts the stored tuple of a permit and of a lease has that was not confirmed.
UNCONFIRMED_PERMIT, UNCONFIRMED_LEASE = 7, 4


def read_permit(stored: Any) -> PermitRecord:
    return _new(PermitRecord, stored if len(stored) > UNCONFIRMED_PERMIT else (*stored, 0))


def read_lease(stored: Any) -> LeaseRow:
    return _new(LeaseRow, stored if len(stored) > UNCONFIRMED_LEASE else (*stored, 0))


def stored_permit(permit: PermitRecord) -> tuple[Any, ...]:
    return tuple(permit) if permit.confirmed else tuple(permit[:UNCONFIRMED_PERMIT])


def stored_lease(row: LeaseRow) -> tuple[Any, ...]:
    return tuple(row) if row.confirmed else tuple(row[:UNCONFIRMED_LEASE])


def permit_of(records: Records, id: str) -> PermitRecord | None:
    """The permit on record under an id."""
    stored = records.space("permits").get(id)
    if stored is None:
        return None
    return _new(PermitRecord, stored if len(stored) > UNCONFIRMED_PERMIT else (*stored, 0))  # `read_permit`


def put_permit(permits: Space, id: str, ref: Ref, at: int, expires: int, fence: int, worth: bool) -> None:
    """A new permit goes on record."""
    ends = expires or at
    permits.put(id, (ref, at, ends, fence, bool(expires), False, worth), ends + REMEMBER)


def end_permit(permits: Space, id: str, permit: PermitRecord, now: int, ended: int) -> None:
    """A permit on record has ended: it stays for REMEMBER, without the time of its confirmation."""
    ref, at, _, fence, leased, _, worth, _ = permit
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
