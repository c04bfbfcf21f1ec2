"""PURE. Permits on record and the rows of leases: as named records here, as tuples in a store.

A stored tuple ends with the time of the confirmation, the attempts and the time of the sent stamp only where there are any,
so most are shorter.

An *attempt* is one call of `acquire`, `try_acquire` or `reserve`: all that is sent for it, however often, is the same ask,
and a later call under the same id is another. An id that a gate made is used by one attempt, and is its name; an attempt
under a caller's id has a name of its own. A permit has the names of the attempts that were answered with it. An attempt is
*over* once its permit has ended or it was cancelled: for REMEMBER more it admits nothing, in whatever order its commands
arrive. While the record of the permit is there, that says so; where another permit took its place, or there never was one,
a *tombstone* does: the record of a permit that has ended, under the id and the attempt.
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
        #: False until it is ended; its lease may have expired all the same: see `permit_lives`. Older state may say 2.
        ended: int
        worth_confirming: bool
        #: When it was confirmed; 0 if it was not.
        confirmed: int
        #: The attempts that were answered with it, separated by spaces; empty where its id is the only one.
        attempts: str
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
    PermitRecord = namedtuple("PermitRecord", "ref at ends fence leased ended worth_confirming confirmed attempts sent")
    LeaseRow = namedtuple("LeaseRow", "ref at fence holder confirmed sent")

#: A record from its parts: naming them takes longer.
_new = tuple.__new__

#: For how long an id is remembered after its permit ended.
REMEMBER = 60 * SECOND

#: How many attempts a permit knows by name; and what stands for all others, which nobody can cancel.
MOST_ATTEMPTS, OTHERS = 8, "*"

#: How many parts the stored tuple of a permit and of a lease has that was neither confirmed nor stamped.
UNCONFIRMED_PERMIT, UNCONFIRMED_LEASE = 7, 4

#: What such tuples leave out, from there on.
_PERMIT_LEFT_OUT, _LEASE_LEFT_OUT = (0, "", 0), (0, 0)


def read_permit(stored: Any) -> PermitRecord:
    return _new(PermitRecord, (*stored, *_PERMIT_LEFT_OUT[len(stored) - UNCONFIRMED_PERMIT :]))


def read_lease(stored: Any) -> LeaseRow:
    return _new(LeaseRow, (*stored, *_LEASE_LEFT_OUT[len(stored) - UNCONFIRMED_LEASE :]))


def stored_permit(permit: PermitRecord) -> tuple[Any, ...]:
    told = 3 if permit.sent else 2 if permit.attempts else 1 if permit.confirmed else 0
    return tuple(permit[: UNCONFIRMED_PERMIT + told])


def stored_lease(row: LeaseRow) -> tuple[Any, ...]:
    return tuple(row[: UNCONFIRMED_LEASE + (2 if row.sent else 1 if row.confirmed else 0)])


def permit_of(records: Records, id: str) -> PermitRecord | None:
    """The permit on record under an id."""
    stored = records.space("permits").get(id)
    if stored is None:
        return None
    return _new(PermitRecord, (*stored, *_PERMIT_LEFT_OUT[len(stored) - UNCONFIRMED_PERMIT :]))  # `read_permit`


def permit_lives(permit: PermitRecord, now: int) -> bool:
    """Whether a permit on record has not ended, and its lease has not expired unseen."""
    return not permit.ended and (not permit.leased or permit.ends > now)


def put_permit(
    permits: Space, id: str, ref: Ref, at: int, expires: int, fence: int, worth: bool, attempt: str = ""
) -> None:
    """A new permit goes on record."""
    ends = expires or at
    stored = (ref, at, ends, fence, bool(expires), False, worth)
    permits.put(id, (*stored, 0, attempt) if attempt else stored, ends + REMEMBER)


def end_permit(permits: Space, id: str, permit: PermitRecord, now: int) -> None:
    """A permit on record has ended, now or when its lease expired: it stays for REMEMBER, without its confirmation and its
    stamp."""
    ref, at, ends, fence, leased, _, worth, _, attempts, _ = permit
    if not leased or ends > now:
        ends = now
    stored = (ref, at, ends, fence, leased, True, worth)
    permits.put(id, (*stored, 0, attempts) if attempts else stored, ends + REMEMBER)


def name_of(id: str, attempt: str) -> str:
    """The name of a tombstone. No id and no attempt has a space in it."""
    return f"{id} {attempt}" if attempt else id


def bury(permits: Space, name: str, over_at: int) -> None:
    """Put a tombstone: whatever asks under this name was over at that moment, or is known to have been later."""
    known = permits.get(name)
    if known is None or read_permit(known).ends < over_at:
        permits.put(name, ((), over_at, over_at, 0, False, True, False), over_at + REMEMBER)


def is_buried(records: Records, name: str, now: int) -> bool:
    """Whether there is a tombstone of this name that still counts."""
    known = permit_of(records, name)
    return known is not None and bool(known.ended) and known.ends + REMEMBER > now


def bury_attempts(records: Records, id: str) -> None:
    """Another permit takes the place of the ended one that is on record under an id: its attempts stay over."""
    known = permit_of(records, id)
    if known is not None:
        for attempt in known.attempts.replace(OTHERS, "").split():
            bury(records.space("permits"), name_of(id, attempt), known.ends)


def join(records: Records, now: int, id: str, permit: PermitRecord, attempt: str) -> None:
    """One more attempt is answered with a permit that lives. The permit ends by a cancel only when all have cancelled."""
    names = (permit.attempts or OTHERS).split()
    if attempt in names:
        return
    permits = records.space("permits")
    if attempt and len(names) >= MOST_ATTEMPTS:
        bury(permits, name_of(id, attempt), now)
        attempt = ""
    if (attempt or OTHERS) not in names:
        permits[id] = stored_permit(permit._replace(attempts=" ".join((*names, attempt or OTHERS))))


def lease_of(records: Records, policy: Policy, id: str) -> LeaseRow | None:
    """The lease of an id, with any limit of slots. An id that a gate made tells its key after a `~`."""
    key = dict(part.split("=", 1) for part in id.partition("~")[2].split(",") if "=" in part)
    for limit in policy.limits:
        if limit.leased:
            member = limit.name if limit.by is None else f"{limit.name}|{key.get(limit.by, '')}"
            if records.states.get(member) is not None and (found := records.leases[member].get(id)) is not None:
                return read_lease(found)
    return None
