"""`dynamodb://TABLE?region=…`: the state of gates in a DynamoDB table, for any number of machines.

A command joins the queue of its gate's `GateWriter`, a thread that reads the gate's item, applies all queued commands to it
and writes it back on the condition that it is unchanged (`writer`, `batch`, `backoff`). `records` and `pack` turn the item
into records and back, `table` sends the requests. A process whose tickets wait learns by `polling` that they were called,
and says by `heartbeat` that it lives. Time is the server's, from the `Date` of its answers (`clock`).
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from ... import duration
from ...aws import ResultUnknown, Throttled
from ...background import at_end, is_ending
from ...errors import InvalidInput, StoreUnavailable, figure
from ...kernel.model import SECOND, Pulse, Wake
from ..base import Capabilities, Listeners, at_fork, checked, ignore_loss, new_session
from .batch import Submission
from .clock import steady
from .heartbeat import is_heartbeat
from .polling import Polling
from .records import gate_records, item_name, read_item
from .table import Conflict, DynamoTable
from .writer import GateWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from ..base import Listener, Seen
    from .records import DynamoRecords

#: Seconds in which an answer must come. DynamoDB's own take some milliseconds.
TIMEOUT_S = 0.2

#: Seconds by which the clocks of two processes may differ: no process decides before it knows the time that well.
SPREAD_S = 0.1

#: Seconds that a process may take to find out the time: a tick of the server's clock comes every second.
CALIBRATING_S = 3.0

#: Microseconds for which a call is held. Longer than elsewhere: the process of a called ticket finds out by polling.
CLAIM_US = 5 * SECOND

#: A heartbeat is written when the process would be taken for dead in less than this many microseconds.
HEARTBEAT_BEFORE_US = 5 * SECOND


class DynamoStore:
    """State in a DynamoDB table: one item per gate, and one per value of a key. Use `redis://…` for many decisions.

    A process decides about a gate once per round trip, for all commands that are queued at that moment; waiters of other
    processes find out by polling that they were called. `timeout` (seconds) is for one answer; `spread` (seconds) is how
    far the clocks of processes may be apart, which every rate allows for; `clock` (microseconds) is for tests.
    """

    keeper: Any = None

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        key: str = "counter_id",
        ttl: str = "ttl",
        timeout: float = TIMEOUT_S,
        spread: float = SPREAD_S,
        clock: Clock | None = None,
        url: str | None = None,
    ) -> None:
        self.url = _url_of(table, region=region, endpoint=endpoint, key=key, ttl=ttl) if url is None else url
        self.on_loss: Callable[[str], None] = ignore_loss
        self.table = DynamoTable(table, region=region, endpoint=endpoint, key=key, ttl=ttl, timeout=timeout)
        self.spread_us = 0 if clock is not None else round(spread * SECOND)
        self.capabilities = Capabilities(
            remote=True, compares_seen=True, creates=True, claim_us=CLAIM_US, clock_spread_us=self.spread_us
        )
        #: Whether items are given a time to live: not under the clock of a test, by which DynamoDB would delete them.
        self.expires = clock is None
        self._clock = clock
        self._listeners = Listeners()
        self._begin()
        at_fork.add(self)
        self.table.connect()

    def _begin(self) -> None:
        """Make what each process has of its own."""
        self._lock = threading.Lock()
        self._calibrating = threading.Lock()
        self._writers: dict[str, GateWriter] = {}
        self._listeners.clear()
        self.polling = Polling(self)
        self.session = new_session()

    def begin_in_child(self) -> None:
        self.table.begin_in_child()
        self._begin()

    # --- deciding -----------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        if is_ending():
            raise at_end(self.table.place)
        if (pulse := self._spared_heartbeat(command)) is not None:
            return pulse
        submission = Submission(command.gate, (command,))
        self._submit(submission)
        self._wait(submission)
        [pending] = submission.pending
        if pending.error is not None:
            raise pending.error
        return checked(pending.reply)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if is_ending():
            raise at_end(self.table.place)
        replies, submissions = self._by_gate(commands, None)
        for submission in submissions:
            self._submit(submission)
        for submission in submissions:
            self._wait(submission)
        return _filled(replies, submissions)

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """`execute` without blocking the event loop. Commands that were begun when it is cancelled may still be decided."""
        if is_ending():
            raise at_end(self.table.place)
        import asyncio

        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed under it
                loop.call_soon_threadsafe(done.set)

        replies, submissions = self._by_gate(commands, tell)
        for submission in submissions:
            self._submit(submission)
        try:
            while not all(submission.done.is_set() for submission in submissions):
                await done.wait()
                done.clear()
        except asyncio.CancelledError:
            for submission in submissions:
                self._withdraw(submission)
            raise
        return _filled(replies, submissions)

    def _by_gate(
        self, commands: Sequence[Command], tell: Callable[[], None] | None
    ) -> tuple[list[Any], list[Submission]]:
        """The replies that are known already (None for the others), and one submission per gate for the others."""
        replies: list[Any] = [self._spared_heartbeat(command) for command in commands]
        places: dict[str, list[int]] = {}
        for place, command in enumerate(commands):
            if replies[place] is None:
                places.setdefault(command.gate, []).append(place)
        return replies, [Submission(gate, [commands[at] for at in own], own, tell) for gate, own in places.items()]

    def _submit(self, submission: Submission) -> None:
        self._writer(submission.gate).submit(submission)

    def _withdraw(self, submission: Submission) -> bool:
        return self._writer(submission.gate).withdraw(submission)

    def _wait(self, submission: Submission) -> None:
        try:
            submission.done.wait()
        except BaseException:
            self._withdraw(submission)  # Ctrl-C: what has begun ends by itself
            raise

    def _spared_heartbeat(self, command: Command) -> Pulse | None:
        """The reply to a heartbeat that need not be written, since the line takes this process to live for long enough."""
        if self._clock is not None or not is_heartbeat(command, self.session):
            return None
        writer = self._writer(command.gate)
        if not self.table.clock.known or writer.lives_until < (now := self.table.clock.now()) + HEARTBEAT_BEFORE_US:
            return None
        return Pulse(now, {}, (), (), (), "", 0, 0)

    def _writer(self, gate: str) -> GateWriter:
        writer = self._writers.get(gate)
        if writer is None:
            with self._lock:
                writer = self._writers.setdefault(gate, GateWriter(self, self.table, gate))
        return writer

    # --- time ---------------------------------------------------------------------------------------------------

    def time(self, records: DynamoRecords, exact: bool) -> int:
        """The store's time; where it must be `exact`, known to within `spread`. A stamp far ahead is not adopted."""
        if self._clock is not None:
            return self._clock()
        clock = self.table.clock
        if exact and clock.width() > self.spread_us:
            self._calibrate()
        now = clock.now()
        last = records.head.now
        if last > now and not clock.witness(last, steady()):
            records.head.now = now
        return max(now, clock.now())

    def _calibrate(self) -> None:
        """Wait for a tick of the server's clock: what is open afterwards is the time between two answers."""
        clock = self.table.clock
        with self._calibrating:
            end = time.monotonic() + CALIBRATING_S
            while clock.width() > self.spread_us:
                if time.monotonic() > end:
                    raise StoreUnavailable(
                        f"{self.table.place}: the time is not known to within {figure(self.spread_us / SECOND)} s, since "
                        f"answers take too long; allow for more with ?spread=0.5, which windows then count longer"
                    )
                begun = time.monotonic()
                with suppress(Conflict, Throttled, ResultUnknown):
                    self.table.get(item_name("clock") + "|")
                time.sleep(max(0.0, self.spread_us / SECOND / 3 - (time.monotonic() - begun)))

    def approximate_time(self) -> int:
        """The store's time as far as it is known, without waiting for a better calibration."""
        return self.table.clock.now() if self._clock is None else self._clock()

    # --- waking -----------------------------------------------------------------------------------------------------

    def wake(self, wakes: list[Wake]) -> None:
        """Wake those of these waiters that are in this process; other processes poll."""
        for wake in wakes:
            self._listeners.tell(wake)

    def wake_ticket(self, ticket: str, delay: int | None) -> None:
        self._listeners.tell(Wake(self.session, ticket, delay))

    def read_gate(self, gate: str) -> DynamoRecords:
        """A gate's records as they are now, for polling."""
        item = self.table.get(item_name(gate))
        return gate_records(gate, None if item is None else read_item(item, item_name(gate))[1])

    def tickets_waiting(self, gate: str) -> list[str]:
        """The tickets of this process that wait at a gate, in order of arrival."""
        return [*self._writer(gate).waiting]

    def lost(self, gate: str) -> None:
        self.on_loss(gate)

    def saw(self, gate: str, number: int = 0, epoch: str = "") -> Seen:
        """Another process was told this of the gate: a table that says otherwise has lost state."""
        return self._writer(gate).saw(number, epoch)

    def listen(self, ticket: str, listener: Listener) -> None:
        self._listeners.add(ticket, listener)

    def unlisten(self, ticket: str) -> None:
        self._listeners.remove(ticket)

    # --- the table --------------------------------------------------------------------------------------------------

    def create(self) -> list[str]:
        """Make the table and its time to live where they are not there. Returns what was made, in words."""
        made = []
        table = self.table.patient()
        try:
            table.describe()
        except StoreUnavailable as error:
            if "does not exist" not in str(error):
                raise
            table.create()
            made.append(f"made the table {table.name!r} with the key {table.key!r}, billed by request")
        if table.time_to_live().get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            table.enable_ttl()
            made.append(f"items expire by their attribute {table.ttl!r}")
        return made

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        self.polling.close()
        self.table.close()


def _url_of(table: str, **options: str | None) -> str:
    """The URL of a store that was made without one: two tables of one name in different places are not the same."""
    from urllib.parse import urlencode

    return f"dynamodb://{table}?{urlencode({name: text for name, text in options.items() if text is not None})}"


def _filled(replies: list[Any], submissions: list[Submission]) -> list[Any]:
    """`replies` with those of the submissions at their places. Raises where the store failed one."""
    for submission in submissions:
        for place, pending in zip(submission.places, submission.pending, strict=True):
            if pending.error is not None:
                raise pending.error
            replies[place] = pending.reply
    return replies


#: What a URL may name.
OPTIONS = ("region", "endpoint", "key", "ttl", "timeout", "spread")


def open_url(url: str) -> DynamoStore:
    """`dynamodb://TABLE?region=…&endpoint=…`, with `key=` and `ttl=` for attributes of other names."""
    import re
    from urllib.parse import parse_qsl, unquote

    rest, _, query = url.removeprefix("dynamodb://").partition("?")
    table = unquote(rest)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", table):
        raise InvalidInput(
            f"{url!r} names no table; write dynamodb://TABLE?region=eu-central-1, with a table name of 3 to 255 letters, "
            f"digits, '_', '-' or '.'"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS or not value:
            raise InvalidInput(
                f"{url!r}: {name}={value} is not known; a DynamoDB store takes {', '.join(f'{o}=' for o in OPTIONS)}"
            )
        if name in ("timeout", "spread"):
            try:
                number = float(value)
            except ValueError:
                number = duration.parse(value, what=f"{name} of {url!r}") / SECOND
            if not 0.01 <= number <= 60:
                raise InvalidInput(f"{url!r}: {name} is between 10ms and 60s, not {value}")
            options[name] = number
        else:
            options[name] = value
    if "endpoint" in options and not options["endpoint"].startswith(("http://", "https://")):
        raise InvalidInput(f"{url!r}: an endpoint begins with http:// or https://")
    if options.get("key", "counter_id") == options.get("ttl", "ttl"):
        raise InvalidInput(f"{url!r}: the key and the time to live are two attributes, so they have two names")
    return DynamoStore(table, **options, url=url)
