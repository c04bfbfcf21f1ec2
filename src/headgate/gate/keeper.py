"""What goes on in the background of a process: leases are renewed, tickets keep their places, sources are read again.

One daemon thread per store, started by the first lease or ticket. It parks itself when there is nothing to keep, does not
hold a process open, and begins anew in the child of a fork (a parent's leases are the parent's).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic, sleep

from ..background import is_ending, start_daemon
from ..errors import HeadgateError
from ..events import emit
from ..kernel.commands import Release, Renew
from ..kernel.flows import CLOSED, SENT_AWAY
from ..kernel.model import NEVER, SECOND
from ..stores.base import at_fork
from .outage import outages_of
from .stamping import steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..kernel.commands import Command
    from ..stores.base import Store
    from .base import BaseGate
    from .permit import BasePermit

#: How often a process with waiters is heard of: this many seconds per process in line, so that a gate hears somebody
#: about three times a second however many wait, and each of them well within its session's 10 s.
BEAT_PER_SESSION, BEAT_LEAST, BEAT_MOST = 0.3, 1.0, 3.3

#: No lease is longer: whoever comes to a keeper that is parked has the shortest.
LONGEST = NEVER

#: Seconds after which a keeper without anything to keep lets its thread go.
PARKED = 5.0

#: Seconds until the store is tried again with what had to wait; twice as long after each failure, up to eight times.
LATER = 0.25

#: Seconds that waiters are given to leave the line when their gate is closed.
LEAVING = 1.0

#: How many commands that had to wait go to the store together.
AT_ONCE = 128


class Keeper:
    """Keeps the leases and tickets of one process alive in one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Whether the store is away, by gate.
        self.outages = outages_of(store)
        #: The gates on this store that were not closed; one that is dropped need not be.
        self._gates: weakref.WeakSet[BaseGate] = weakref.WeakSet()
        self._begin()
        at_fork.add(self)

    def begin_in_child(self) -> None:
        # The child has copies of its parent's permits. Leaving a block there must not end what the parent goes on with.
        for permit in (*self.young.values(), *(found() for found, _ in self.live.values())):
            if permit is not None:
                permit.disown()
        self._begin()

    def _begin(self) -> None:
        #: Permits by id that came since the last look: most are gone before the next, and a weak reference costs as much as
        #: all else that is done for a lease here.
        self.young: dict[str, BasePermit] = {}
        #: The others, with their gates; weak, so that one that was dropped is not renewed for ever.
        self.live: dict[str, tuple[weakref.ref[BasePermit], str]] = {}
        self._due: dict[str, float] = {}
        #: Gates that have lost their state, and whose leases are all to be renewed at the next look.
        self._lost_gates: set[str] = set()
        self._tickets: dict[str, dict[str, Callable[[int | None], None]]] = {}
        #: What the store is still to be told.
        self._later: list[Command] = []
        #: Gates whose lines no command has served in time.
        self._sweeps: dict[str, None] = {}
        #: Held while the store decides for one of them.
        self._sweeping = threading.RLock()
        self._refresh: dict[int, weakref.WeakMethod[Callable[[], float]]] = {}
        self._refresh_at: dict[int, float] = {}
        self.shortest = LONGEST
        self._beat = BEAT_LEAST
        self._next_beat = 0.0
        self._awake_at = 0.0
        self._failures = 0
        self.parked = True
        self._bell = threading.Event()
        #: It knows its owner: see `ring`.
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None

    # --- what others call ---------------------------------------------------------------------------------------

    def add_gate(self, gate: BaseGate) -> None:
        self._gates.add(gate)

    def close_gate(self, gate: BaseGate) -> None:
        """Close a gate, and its store after the last one. Blocks the thread for a few round trips, or until the store has
        failed to answer.

        What the store was still to be told is told. With the last gate of its name its waiters are denied, and leases that
        are still held are renewed no longer.
        """
        gate.closed = True
        self._gates.discard(gate)
        self._refresh.pop(id(gate), None)
        name = gate.name
        if not any(other.name == name for other in self._gates):
            for ticket in list(self._tickets.get(name, ())):
                self.send_away(name, ticket, CLOSED)
            for found in [*self.young.values(), *(permit() for permit, _ in list(self.live.values()))]:
                if found is not None and found.gate_name == name:
                    self.unwatch(found.id)
            end = monotonic() + LEAVING
            while self._tickets.get(name) and monotonic() < end:  # each waiter cancels its ticket itself
                sleep(0.005)
        left, self._later = self._later, []
        for at in range(0, len(left), AT_ONCE):
            with suppress(HeadgateError):  # the store is away: leases and tickets end there by themselves
                self._execute(left[at : at + AT_ONCE])
        if not self._gates:
            self.store.close()

    def watch(self, permit: BasePermit, length: int) -> None:
        """Renew this permit's lease (of `length` microseconds) until it ends."""
        self.young[permit.id] = permit
        if length < self.shortest or self.parked:
            self.shortest = min(length, self.shortest)
            self.ring()

    def unwatch(self, id: str) -> None:
        if self.young.pop(id, None) is None:
            self.live.pop(id, None)

    def attend(self, gate: str, ticket: str, listener: Callable[[int | None], None]) -> None:
        """Keep a ticket's place, and tell its waiter what the heartbeat finds out."""
        self._tickets.setdefault(gate, {})[ticket] = listener
        soon = monotonic() + BEAT_LEAST
        if self.parked or self._awake_at > soon:
            # It sleeps for longer than a ticket may go unheard of: have it look, and beat once the ticket stands.
            self._next_beat = max(self._next_beat, soon)
            self.ring()

    def dismiss(self, gate: str, ticket: str) -> None:
        mine = self._tickets.get(gate)
        if mine is not None:
            mine.pop(ticket, None)

    def send_away(self, gate: str, ticket: str, told: int = SENT_AWAY) -> bool:
        """Have the waiter of a ticket go without giving up its place: it comes again, perhaps to another process."""
        listener = self._tickets.get(gate, {}).get(ticket)
        if listener is not None:
            listener(told)
        return listener is not None

    def later(self, command: Command) -> None:
        """Have a command decided soon, and again until the store can be reached."""
        if isinstance(command, Release) and command.since is None:
            # It knows no fence, and its id may be another permit's by the time it is told.
            asked = command.asked or steady() - command.ago
            spread = self.store.capabilities.clock_spread_us
            command.since = lambda: max(0, steady() - asked - spread)
        self._later.append(command)
        self.ring()

    def late_release(self, gate: str, id: str) -> Release | None:
        """A release of this id that the store could not be told yet. An ask under the id has it told first.

        It stays to be told: told twice, it ends nothing that was granted since.
        """
        for command in self._later[:]:  # its thread takes from it meanwhile
            if isinstance(command, Release) and command.id == id and command.gate == gate:
                return command
        return None

    def sweep(self, gate: str) -> None:
        """Have the line of a gate served soon: all that stand in it may be dead."""
        if gate not in self._sweeps:
            self._sweeps[gate] = None
            self.ring()

    def drop_sweeps(self) -> None:
        """The store is being closed: what a look has asked for must not open it again. Waits for one that is under way."""
        self._sweeps.clear()
        if not is_ending() and self._sweeping.acquire(timeout=LEAVING):
            self._sweeping.release()

    def refresh(self, read: Callable[[], float]) -> None:
        """Call a bound method now and then; it returns the seconds until the next time."""
        key = id(read.__self__)  # type: ignore[attr-defined]
        self._refresh[key] = weakref.WeakMethod(read)
        self._refresh_at[key] = 0.0
        self.ring()

    def state_lost(self, gate: str) -> None:
        """The store has lost the state of a gate: tell, and renew all its leases now.

        Until then others are given the slots, and a long lease may not be due for hours.
        """
        emit("state_lost", gate)
        self._lost_gates.add(gate)
        if self.young or self.live:
            self.ring()

    def ring(self) -> None:
        if is_ending() or self._starting._is_owned():  # type: ignore[attr-defined]
            # The process ends: what it holds runs out by itself. Or a coroutine was collected while this very thread
            # starts the keeper's, which finds what it left.
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self.parked = False
                self._thread = start_daemon("headgate-keeper", self._run)
        self._bell.set()

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        idle = 0
        while True:
            now = monotonic()
            try:
                self._tick(now)
                self._failures = 0
            except HeadgateError:
                self._failures = min(self._failures + 1, 4)
                # The store is away; leases are renewed when it is back, if that is in time.
                self._next_beat = now + BEAT_LEAST
                self._alarm()
            except Exception:
                # A bug, in a source or in ours. It must not cost this process all of its leases and places: tell, go on.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
                self._next_beat = now + BEAT_LEAST
            if self.young or self.live or any(self._tickets.values()) or self._later or self._refresh:
                idle = 0
            else:
                idle += 1
            if idle > 2:
                self.shortest = LONGEST
                self.parked = True
                # Whoever came between the look above and this line has not rung.
                came = self.young or self.live or any(self._tickets.values()) or self._later
                if not came and not self._bell.wait(PARKED) and self._leave():
                    return
                self.parked = False
                idle = 0
            else:
                now = monotonic()
                pause = self._pause(now)
                self._awake_at = now + pause
                self._bell.wait(pause)
            self._bell.clear()

    def _alarm(self) -> None:
        """Nobody can call those who wait now: each asks the store itself once, and then does as its gate was told."""
        for mine in list(self._tickets.values()):
            for listener in list(mine.values()):
                listener(None)

    def _leave(self) -> bool:
        """Nobody has come for long: the thread ends, and the next who comes starts another."""
        with self._starting:
            if self._bell.is_set() or self.young or self.live or self._later:
                return False
            self._thread = None
            return True

    def _pause(self, now: float) -> float:
        pause = min(5.0, self.shortest / 6 / SECOND)
        if any(self._tickets.values()):
            pause = min(pause, max(0.0, self._next_beat - now))
        if self._later:
            pause = min(pause, LATER * 2**self._failures / 2)
        for due in self._refresh_at.values():
            pause = min(pause, max(0.01, due - now))
        return pause

    def _tick(self, now: float) -> None:
        for key, due in list(self._refresh_at.items()):
            if due <= now:
                found = self._refresh.get(key)
                read = None if found is None else found()
                if read is None:
                    self._refresh.pop(key, None)
                    self._refresh_at.pop(key, None)
                else:
                    self._refresh_at[key] = now + read()
        while together := (later := self._later)[:AT_ONCE]:
            self._execute(together)
            del later[: len(together)]  # others add to its end meanwhile, or have taken it all
        for gate in list(self._sweeps):
            self._sweep(gate)
        lost_gates = set(self._lost_gates)
        leases = self._leases(now, lost_gates)
        beating = now >= self._next_beat
        gates = set(leases) | ({gate for gate, mine in list(self._tickets.items()) if mine} if beating else set())
        if not gates:
            self._lost_gates -= lost_gates
            return
        commands: list[Command] = []
        for gate in gates:
            tickets = tuple(self._tickets.get(gate, ())) if beating else ()
            if self.store.capabilities.instant:
                tickets = tickets[:1]  # no wake is lost on its way, and they die together: one stands for all
            rows = tuple(permit.lease_row() for permit in leases.get(gate, ()))
            commands.append(Renew(gate, rows, self.store.session if tickets else "", tickets))
        replies = self._execute(commands)
        self._lost_gates -= lost_gates
        sessions = 0
        for command, pulse in zip(commands, replies, strict=True):
            if isinstance(pulse, BaseException):
                continue
            sessions = max(sessions, pulse.sessions)
            for permit in leases.get(command.gate, ()):
                self._renewed(permit, pulse.expires[permit.id], now)
            self._told(command.gate, pulse)
        if beating:
            self._beat = min(max(sessions * BEAT_PER_SESSION, BEAT_LEAST), BEAT_MOST)
            self._next_beat = now + self._beat

    def _sweep(self, gate: str) -> None:
        """Serve a line until nothing in it is due: a serving takes so many tickets of dead processes out of it."""
        try:
            for _ in range(AT_ONCE):
                with self._sweeping:
                    if gate not in self._sweeps:
                        return  # dropped meanwhile
                    [pulse] = self.store.execute([Renew(gate)])
                if isinstance(pulse, BaseException) or pulse.timer_at > pulse.now:
                    break
        except HeadgateError:
            pass  # a token that may only look, or a store that is away: the next look tells again
        finally:
            self._sweeps.pop(gate, None)

    def _execute(self, commands: list[Command]) -> list[Any]:
        replies = self.store.execute(commands)
        for command in commands:  # the store is there, so asks need not wait until one of them tries it
            if (outage := self.outages.get(command.gate)) is not None:
                outage.ended()
        return replies

    def _leases(self, now: float, lost_gates: set[str]) -> dict[str, list[BasePermit]]:
        """The permits that are due for renewal, by gate: of gates that have lost their state, all."""
        due: dict[str, list[BasePermit]] = {}
        for id in list(self.young):
            fresh = self.young.get(id)
            if fresh is not None:
                self.live[id] = (weakref.ref(fresh), fresh.gate_name)
                del fresh
                if self.young.pop(id, None) is None:  # it ended at this very moment
                    self.live.pop(id, None)
        for id, (found, gate) in list(self.live.items()):
            permit = found()
            if permit is None:
                if self.live.pop(id, None) is not None:
                    emit("permit_dropped", gate, id=id)
                self._due.pop(id, None)
                continue
            third = permit.lease_seconds / 3
            at = self._due.setdefault(id, now + third / 2)
            if at <= now or gate in lost_gates:
                due.setdefault(permit.gate_name, []).append(permit)
                self._due[id] = now + third - min(5.0, self.shortest / 6 / SECOND)
        for id in self._due.keys() - self.live.keys():
            del self._due[id]
        return due

    def _renewed(self, permit: BasePermit, expires: int, now: float) -> None:
        if expires:
            permit.lease_moved(expires)
        elif self.live.pop(permit.id, None) is not None:
            permit.lease_gone()

    def _told(self, gate: str, pulse: Any) -> None:
        mine = self._tickets.get(gate, {})
        unknown = tuple(mine) if pulse.unknown and self.store.capabilities.instant else pulse.unknown
        for ticket in (*pulse.called, *unknown):
            listener = mine.get(ticket)
            if listener is not None:
                listener(None)
        listener = mine.get(pulse.timer)
        if listener is not None:
            listener(max(0, min(pulse.timer_at - pulse.now, 3600 * SECOND)))


_lock = threading.Lock()


def keeper_of(store: Store) -> Keeper:
    """The one keeper of a store in this process. It is kept with the store, and goes with it."""
    keeper: Keeper | None = store.keeper
    if keeper is None:
        with _lock:
            keeper = store.keeper
            if keeper is None:
                keeper = store.keeper = Keeper(store)
    return keeper


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
