"""A queue as rows of a SQL database: the statements, for a file and for memory alike. See `sqlite.py` and `memory.py`.

    queues   (id, name, total, done, failed, paused)                 one row for each queue
    messages (seq, queue, id, lane, body, due, token, …)             waiting, delayed and leased
    dead     (seq, queue, id, lane, body, reason, error, …)          given up
    ledger   (queue, id, at, outputs)                                done, or its outputs recorded
    waiters  (queue, process)                                        processes that sleep until a message comes

A message is *ready* where `due` is null, *delayed* until `due`, and *leased* until `due` where it has a token. `seq` is the
order of arrival and stays with the message, so that one that comes back keeps its place. The two partial indexes hold ready
and not-ready messages apart: a lease looks at the first few entries of each, however many messages there are.
"""

from __future__ import annotations

import json
from dataclasses import replace
from secrets import token_hex

from ..message import DeadLetter, Delivery, MessageHistory, QueueStats
from ..outcomes import SECOND, Bury, Finish, Return
from .base import PutResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from ..message import NewMessage
    from .base import DeadFilter, Ending

#: Microseconds for which a message that is done is remembered by its id.
REMEMBER_US = 14 * 86_400 * SECOND
#: Ledger rows that are forgotten at most with one settlement, and delayed messages that become ready with one lease.
_FORGET, _PROMOTE = 4, 512
#: Lanes that a look goes through.
_LANES_SEEN = 64

_HISTORY = "attempts, refusals, deaths, receives, put_at"

SCHEMA = (
    "CREATE TABLE queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, total INTEGER NOT NULL DEFAULT 0, "
    "done INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, paused TEXT)",
    "CREATE TABLE messages (seq INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER NOT NULL, id TEXT NOT NULL, "
    "lane TEXT NOT NULL, body TEXT NOT NULL, due INTEGER, token TEXT, attempts INTEGER NOT NULL DEFAULT 0, "
    "refusals INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0, receives INTEGER NOT NULL DEFAULT 0, "
    "put_at INTEGER NOT NULL, named INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX message_ids ON messages (queue, id)",
    "CREATE INDEX ready ON messages (queue, lane, seq) WHERE due IS NULL",
    "CREATE INDEX not_ready ON messages (queue, due) WHERE due IS NOT NULL",
    "CREATE TABLE dead (seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, id TEXT NOT NULL, lane TEXT NOT NULL, "
    "body TEXT NOT NULL, reason TEXT NOT NULL, error TEXT NOT NULL, buried_at INTEGER NOT NULL, "
    "attempts INTEGER NOT NULL, refusals INTEGER NOT NULL, deaths INTEGER NOT NULL, receives INTEGER NOT NULL, "
    "put_at INTEGER NOT NULL, UNIQUE (queue, id))",
    "CREATE TABLE ledger (queue INTEGER NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, outputs TEXT, "
    "PRIMARY KEY (queue, id)) WITHOUT ROWID",
    "CREATE INDEX ledger_age ON ledger (at)",
    "CREATE TABLE waiters (queue INTEGER NOT NULL, process TEXT NOT NULL, PRIMARY KEY (queue, process)) WITHOUT ROWID",
)


def latest_us(execute: Callable[..., Any]) -> int:
    """The latest time in the database, as far as an index knows it."""
    times = (
        "SELECT max(put_at) FROM (SELECT put_at FROM messages ORDER BY seq DESC LIMIT 1)",
        "SELECT max(at) FROM ledger",
        "SELECT max(buried_at) FROM dead",
    )
    return max(execute(statement).fetchone()[0] or 0 for statement in times)


class QueueRows:
    """The rows of one queue. Every method is to be called inside a transaction; `now` is the database's time (µs)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._id = 0
        #: The lane after which `lanes` goes on; None: at the first.
        self._lane: str | None = None

    def id(self, execute: Callable[..., Any]) -> int:
        """The number of this queue; its row is made when it is first needed."""
        if not self._id:
            execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", (self.name,))
            [self._id] = execute("SELECT id FROM queues WHERE name = ?", (self.name,)).fetchone()
        return self._id

    def forget(self) -> None:
        """The row of this queue may not be there: a transaction was rolled back, or the database is another one."""
        self._id = 0

    # --- putting --------------------------------------------------------------------------------------------------

    def put(self, execute: Callable[..., Any], now: int, messages: Sequence[NewMessage]) -> list[PutResult]:
        queue, results, added = self.id(execute), [], 0
        for message in messages:
            named = message.id != ""
            id = message.id or f"{now:014x}{token_hex(5)}"
            is_new = not (named and self._is_known(execute, queue, id))
            if is_new:
                due = now + message.delay_us if message.delay_us else None
                execute(
                    "INSERT INTO messages (queue, id, lane, body, due, put_at, named) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (queue, id, message.lane, message.body, due, now, named),
                )
                added += 1
            results.append(PutResult(id, is_new))
        if added:
            execute("UPDATE queues SET total = total + ? WHERE id = ?", (added, queue))
        return results

    def _is_known(self, execute: Callable[..., Any], queue: int, id: str) -> bool:
        found = execute(
            "SELECT 1 FROM messages WHERE queue = ?1 AND id = ?2 UNION ALL SELECT 1 FROM dead WHERE queue = ?1 AND id = ?2 "
            "UNION ALL SELECT 1 FROM ledger WHERE queue = ?1 AND id = ?2 LIMIT 1",
            (queue, id),
        ).fetchone()
        return found is not None

    # --- leasing --------------------------------------------------------------------------------------------------

    def next_due(self, execute: Callable[..., Any]) -> int | None:
        """When the next message that is not ready may be."""
        [due] = execute(
            "SELECT min(due) FROM messages WHERE queue = ? AND due IS NOT NULL", (self.id(execute),)
        ).fetchone()
        return due  # type: ignore[no-any-return]

    def promote(self, execute: Callable[..., Any], now: int) -> int:
        """Make those ready whose time has come. A lease that ran out is counted as a death."""
        due = self.next_due(execute)
        if due is None or due > now:
            return 0
        changed: int = execute(
            "UPDATE messages SET due = NULL, deaths = deaths + (token IS NOT NULL), token = NULL WHERE seq IN "
            "(SELECT seq FROM messages WHERE queue = ? AND due IS NOT NULL AND due <= ? ORDER BY due LIMIT ?)",
            (self.id(execute), now, _PROMOTE),
        ).rowcount
        return changed

    def is_paused(self, execute: Callable[..., Any]) -> bool:
        return self.paused(execute) is not None

    def paused(self, execute: Callable[..., Any]) -> str | None:
        [reason] = execute("SELECT paused FROM queues WHERE id = ?", (self.id(execute),)).fetchone()
        return reason  # type: ignore[no-any-return]

    def lease(
        self, execute: Callable[..., Any], now: int, most: int, for_us: int, lane: str | None, token: str
    ) -> list[Delivery]:
        queue = self.id(execute)
        if self.is_paused(execute):
            return []
        self.promote(execute, now)
        rows: list[Any] = []
        for one in self.lanes(execute, most) if lane is None else (lane,):
            rows += execute(
                f"SELECT seq, id, lane, body, {_HISTORY}, named FROM messages "
                f"WHERE queue = ? AND lane = ? AND due IS NULL ORDER BY seq LIMIT ?",
                (queue, one, most + 1 - len(rows)),
            ).fetchall()
            if len(rows) > most:
                break
        until = now + for_us
        leased = []
        for seq, id, its_lane, body, *past, named in rows[:most]:
            execute(
                "UPDATE messages SET due = ?, token = ?, receives = receives + 1 WHERE seq = ?", (until, token, seq)
            )
            history = MessageHistory(*past)
            history = replace(history, receives=history.receives + 1)
            recorded = None
            if named or history.receives > 1:
                found = execute("SELECT outputs FROM ledger WHERE queue = ? AND id = ?", (queue, id)).fetchone()
                recorded = None if found is None else tuple(json.loads(found[0] or "[]"))
            leased.append(Delivery(id, body, its_lane, history, seq, token, until, recorded, len(rows) > most))
        return leased

    def lanes(self, execute: Callable[..., Any], most: int) -> list[str]:
        """Lanes with a ready message, from where the last call ended: by an index, past all messages of each."""
        found = self._lanes_after(execute, self._lane, None, most)
        if self._lane is not None:
            found += self._lanes_after(execute, None, self._lane, most - len(found))
        self._lane = found[-1] if len(found) == most else None
        return found

    def _lanes_after(self, execute: Callable[..., Any], after: str | None, last: str | None, most: int) -> list[str]:
        queue, found = self.id(execute), list[str]()
        while len(found) < most:
            where, values = ("", ()) if after is None else ("AND lane > ?", (after,))
            [after] = execute(
                f"SELECT min(lane) FROM messages WHERE queue = ? AND due IS NULL {where}", (queue, *values)
            ).fetchone()
            if after is None or (last is not None and after > last):
                break
            found.append(after)
        return found

    def extend(self, execute: Callable[..., Any], now: int, deliveries: Sequence[Delivery], for_us: int) -> list[bool]:
        until = now + for_us
        return [
            execute("UPDATE messages SET due = ? WHERE seq = ? AND token = ?", (until, one.receipt, one.token)).rowcount
            == 1
            for one in deliveries
        ]

    # --- settling -------------------------------------------------------------------------------------------------

    def record(self, execute: Callable[..., Any], now: int, delivery: Delivery, outputs: tuple[str, ...]) -> bool:
        if not self._is_held(execute, delivery):
            return False
        text = json.dumps(outputs, ensure_ascii=False)
        execute("REPLACE INTO ledger VALUES (?, ?, ?, ?)", (self.id(execute), delivery.id, now, text))
        return True

    def _is_held(self, execute: Callable[..., Any], delivery: Delivery) -> bool:
        found = execute(
            "SELECT 1 FROM messages WHERE seq = ? AND token = ?", (delivery.receipt, delivery.token)
        ).fetchone()
        return found is not None

    def settle(
        self, execute: Callable[..., Any], now: int, endings: Sequence[Ending], other: Callable[[str], QueueRows]
    ) -> list[bool]:
        """End deliveries; hand-offs are put into the rows that `other` gives for the name of a queue."""
        queue, settled = self.id(execute), []
        done = failed = gone = 0
        handed: dict[str, list[NewMessage]] = {}
        for delivery, verdict, hand_off in endings:
            if isinstance(verdict, Return):
                ok = self._return(execute, now, delivery, verdict)
                failed += ok and verdict.failed
            else:
                ok = self._take_out(execute, now, queue, delivery, verdict)
                gone += ok
                if isinstance(verdict, Bury):
                    failed += ok and verdict.failed
                elif ok:
                    done += 1
                    if hand_off is not None:
                        handed.setdefault(hand_off.queue, []).extend(hand_off.messages)
            settled.append(bool(ok))
        for name, messages in handed.items():
            other(name).put(execute, now, messages)
        if done or failed or gone:
            execute(
                "UPDATE queues SET total = total - ?, done = done + ?, failed = failed + ? WHERE id = ?",
                (gone, done, failed, queue),
            )
        execute(
            "DELETE FROM ledger WHERE (queue, id) IN (SELECT queue, id FROM ledger WHERE at < ? ORDER BY at LIMIT ?)",
            (now - REMEMBER_US, _FORGET),
        )
        return settled

    def _return(self, execute: Callable[..., Any], now: int, delivery: Delivery, verdict: Return) -> bool:
        history = verdict.history
        due = now + verdict.delay_us if verdict.delay_us else None
        changed: int = execute(
            "UPDATE messages SET due = ?, token = NULL, attempts = ?, refusals = ?, deaths = ? WHERE seq = ? AND token = ?",
            (due, history.attempts, history.refusals, history.deaths, delivery.receipt, delivery.token),
        ).rowcount
        return changed == 1

    def _take_out(
        self, execute: Callable[..., Any], now: int, queue: int, delivery: Delivery, verdict: Finish | Bury
    ) -> bool:
        row = execute(
            f"DELETE FROM messages WHERE seq = ? AND token = ? RETURNING lane, body, named, {_HISTORY}",
            (delivery.receipt, delivery.token),
        ).fetchone()
        if row is None:
            return False
        lane, body, named, *past = row
        if isinstance(verdict, Bury):
            history = replace(verdict.history, receives=past[3], put_at_us=past[4])
            execute(
                f"REPLACE INTO dead (seq, queue, id, lane, body, reason, error, buried_at, {_HISTORY}) "
                f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(delivery.receipt, queue, delivery.id, lane, body, verdict.reason, verdict.error, now),
                    *(history.attempts, history.refusals, history.deaths, history.receives, history.put_at_us),
                ),
            )
        elif named:
            execute("REPLACE INTO ledger VALUES (?, ?, ?, NULL)", (queue, delivery.id, now))
        return True

    # --- waiting --------------------------------------------------------------------------------------------------

    def has_ready(self, execute: Callable[..., Any], beyond: Collection[str]) -> bool:
        """Whether a message of another lane than these is ready."""
        found = self._lanes_after(execute, None, None, len(beyond) + 1)
        return any(lane not in beyond for lane in found) and not self.is_paused(execute)

    def add_waiter(self, execute: Callable[..., Any], process: str) -> None:
        execute("INSERT OR IGNORE INTO waiters VALUES (?, ?)", (self.id(execute), process))

    def remove_waiter(self, execute: Callable[..., Any], process: str) -> None:
        execute("DELETE FROM waiters WHERE queue = ? AND process = ?", (self.id(execute), process))

    def take_waiters(self, execute: Callable[..., Any], most: int) -> list[str]:
        """Processes to wake. They are on the list no longer: each puts itself there again when it waits again."""
        queue = self.id(execute)
        found = [
            process for (process,) in execute("SELECT process FROM waiters WHERE queue = ? LIMIT ?", (queue, most))
        ]
        for process in found:
            self.remove_waiter(execute, process)
        return found

    # --- looking, and what operators do ---------------------------------------------------------------------------

    def stats(self, execute: Callable[..., Any], now: int) -> QueueStats:
        queue = self.id(execute)
        total, done, failed, paused = execute(
            "SELECT total, done, failed, paused FROM queues WHERE id = ?", (queue,)
        ).fetchone()
        in_work, delayed = execute(
            "SELECT count(*) FILTER (WHERE token IS NOT NULL AND due > ?2), "
            "count(*) FILTER (WHERE token IS NULL AND due > ?2) FROM messages WHERE queue = ?1 AND due IS NOT NULL",
            (queue, now),
        ).fetchone()
        [dead] = execute("SELECT count(*) FROM dead WHERE queue = ?", (queue,)).fetchone()
        first = self._first(execute, 1)
        oldest = None
        if first:
            [put_at] = execute("SELECT put_at FROM messages WHERE seq = ?", first).fetchone()
            oldest = max(0, now - put_at) / SECOND
        return QueueStats(self.name, total - in_work - delayed, delayed, in_work, dead, done, failed, oldest, paused)

    def peek(self, execute: Callable[..., Any], now: int, most: int) -> list[tuple[str, str, str, MessageHistory]]:
        found = []
        for seq in self._first(execute, most):
            id, body, due, token, *past = execute(
                f"SELECT id, body, due, token, {_HISTORY} FROM messages WHERE seq = ?", (seq,)
            ).fetchone()
            found.append((id, _state(due, token, now), body, MessageHistory(*past)))
        return found

    def _first(self, execute: Callable[..., Any], most: int) -> list[int]:
        """The first messages in order of arrival, by the two indexes: the table itself is in order of all queues."""
        queue = self.id(execute)
        statement = "SELECT seq FROM messages WHERE queue = ? AND due IS NOT NULL ORDER BY seq LIMIT ?"
        found = execute(statement, (queue, most)).fetchall()
        for lane in self._lanes_after(execute, None, None, _LANES_SEEN):
            found += execute(
                "SELECT seq FROM messages WHERE queue = ? AND lane = ? AND due IS NULL ORDER BY seq LIMIT ?",
                (queue, lane, most),
            ).fetchall()
        return sorted(seq for (seq,) in found)[:most]

    def pause(self, execute: Callable[..., Any], reason: str | None) -> None:
        execute("UPDATE queues SET paused = ? WHERE id = ?", (reason, self.id(execute)))

    def purge(self, execute: Callable[..., Any], now: int) -> int:
        queue = self.id(execute)
        deleted: int = execute(
            "DELETE FROM messages WHERE queue = ? AND (token IS NULL OR due <= ?)", (queue, now)
        ).rowcount
        execute("UPDATE queues SET total = total - ? WHERE id = ?", (deleted, queue))
        return deleted

    def dead_letters(self, execute: Callable[..., Any], now: int, which: DeadFilter, most: int) -> list[DeadLetter]:
        terms, values = ["queue = ?"], [self.id(execute)]
        if which.reason is not None:
            terms.append("reason = ?")
            values.append(which.reason)  # type: ignore[arg-type]
        if which.older_for is not None:
            terms.append("buried_at <= ?")
            values.append(now - round(which.older_for * SECOND))
        if which.text is not None:
            terms.append("(instr(body, ?) OR instr(error, ?) OR instr(id, ?))")
            values += [which.text] * 3  # type: ignore[list-item]
        if which.ids:
            terms.append(f"id IN ({', '.join('?' * len(which.ids))})")
            values += which.ids  # type: ignore[arg-type]
        rows = execute(
            f"SELECT id, body, reason, error, buried_at, lane, {_HISTORY} FROM dead WHERE {' AND '.join(terms)} "
            f"ORDER BY buried_at, seq LIMIT ?",
            (*values, most),
        ).fetchall()
        return [
            DeadLetter(id, body, reason, error, MessageHistory(*past), buried_at, lane)
            for id, body, reason, error, buried_at, lane, *past in rows
        ]

    def redrive(self, execute: Callable[..., Any], now: int, ids: Sequence[str], every_us: int) -> int:
        queue, moved = self.id(execute), 0
        for id in ids:
            row = execute(
                "DELETE FROM dead WHERE queue = ? AND id = ? RETURNING lane, body, put_at", (queue, id)
            ).fetchone()
            if row is None:
                continue
            lane, body, put_at = row
            due = now + moved * every_us if moved and every_us else None
            # Named: what had an outcome once must be recognised if it is put again.
            execute(
                "INSERT INTO messages (queue, id, lane, body, due, put_at, named) VALUES (?, ?, ?, ?, ?, ?, 1)",
                (queue, id, lane, body, due, put_at),
            )
            moved += 1
        execute("UPDATE queues SET total = total + ? WHERE id = ?", (moved, queue))
        return moved

    def drop(self, execute: Callable[..., Any], ids: Sequence[str]) -> int:
        queue = self.id(execute)
        return sum(execute("DELETE FROM dead WHERE queue = ? AND id = ?", (queue, id)).rowcount for id in ids)


def _state(due: int | None, token: str | None, now: int) -> str:
    if due is None or due <= now:
        return "ready"
    return "delayed" if token is None else "in work"
