"""The store port: what a gate needs of the place where its state lives."""

from __future__ import annotations

from ..errors import HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from ..kernel.commands import Command
    from ..kernel.model import Wake
    from ..kernel.records import DictRecords

    #: Called with a delay in microseconds, or None: the ticket was called. From any thread; must not block.
    Listener = Callable[[int | None], None]

    class Store(Protocol):
        """Decides commands. Each command is atomic by itself; a batch costs one round trip.

        Who guarantees atomicity: the store. `memory` and `sqlite` run `command.apply` inside a lock or a transaction.
        """

        #: As it was opened.
        url: str
        #: Whether a reply can be lost on the way, so that every ask needs an id that is remembered.
        remote: bool
        #: Whether `decide` never waits for anything, so that an event loop may call it.
        instant: bool
        #: This process, as far as lines are concerned. Another one after a fork.
        session: str
        #: What keeps leases and tickets alive here; gates set it, and it goes with the store.
        keeper: Any
        #: Told the name of a gate whose state was lost; gates set it.
        on_loss: Callable[[str], None]

        def execute(self, commands: Sequence[Command]) -> list[Any]:
            """Replies in the order of the commands; an error takes the place of a reply. Raises StoreUnavailable."""

        async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
            """The same without blocking the event loop."""

        def decide(self, command: Command) -> Any:
            """`execute` for one command: the fast path. Raises what `execute` would hand back as an error."""

        def caller(self, gate: str) -> Callable[..., Any] | None:
            """Where the state is in this process: `admit` and `end` without a command object. None elsewhere."""

        def prepared(self, gate: str, prepare: Callable[[Here], Any]) -> Any:
            """The same for asks that are all alike: made ready once, for the state where it is. None elsewhere."""

        def listen(self, ticket: str, listener: Listener) -> None:
            """Have this process told when the ticket is called, or should look again."""

        def unlisten(self, ticket: str) -> None:
            """No longer. A ticket that nobody listens for is no error."""

        def close(self) -> None:
            """Let go of files, sockets and threads. What is in the store stays."""

        # A guard serves the stores of other processes (`http://`). Where a store has these, it uses them:
        # `adopt(session, tell)` and `disown(session)`: wakes of that process are told here, and no longer;
        # `saw(gate, number)`: somebody was told so; returns how far the gate has come, as far as is known here;
        # `at_once(command)`: the reply, where that takes no waiting and nobody else is there to be decided about with it;
        # `all_at_once(commands)`: those of commands that came together, where that takes no waiting. Else both return None.


def ignore_loss(gate: str) -> None:
    """Until a gate says otherwise."""


class Here:
    """The state of one gate in this process, and what it takes to decide about it. Time is `ticks() // 1000 + offset`."""

    __slots__ = ("lock", "offset", "records", "ticks", "wake")

    def __init__(
        self, lock: Any, records: DictRecords, ticks: Callable[[], int], offset: int, wake: Callable[[], None]
    ) -> None:
        #: To take it, to let go of it, and to ask whether this thread has it.
        self.lock: tuple[Callable[[], object], Callable[[], None], Callable[[], bool]] = (
            lock.acquire,
            lock.release,
            lock._is_owned,
        )
        self.records = records
        self.ticks = ticks
        self.offset = offset
        self.wake = wake


class Listeners:
    """Who waits in this process, by ticket. Dicts are safe under threads for single operations."""

    __slots__ = ("_by_session", "_by_ticket")

    def __init__(self) -> None:
        self._by_ticket: dict[str, Listener] = {}
        #: Other processes that this one answers for, as a guard does for its clients.
        self._by_session: dict[str, Callable[[Wake], None]] = {}

    def __len__(self) -> int:
        return len(self._by_ticket) + len(self._by_session)

    def add(self, ticket: str, listener: Listener) -> None:
        self._by_ticket[ticket] = listener

    def remove(self, ticket: str) -> None:
        self._by_ticket.pop(ticket, None)

    def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
        """Have all wakes of another process told here."""
        self._by_session[session] = tell

    def disown(self, session: str) -> None:
        self._by_session.pop(session, None)

    def clear(self) -> None:
        self._by_ticket.clear()
        self._by_session.clear()

    def tell(self, wake: Wake) -> bool:
        """Wake the waiter, if it is one of ours."""
        listener = self._by_ticket.get(wake.ticket)
        if listener is None:
            adopted = self._by_session.get(wake.session)
            if adopted is not None:
                adopted(wake)
                return True
            return False
        listener(wake.delay)
        return True


class AtFork:
    """Objects that begin anew in the child of a fork, as long as they live: each has a `begin_in_child`."""

    def __init__(self) -> None:
        import os
        from weakref import WeakSet

        self._objects: Any = WeakSet()
        os.register_at_fork(after_in_child=self._after)

    def add(self, thing: Any) -> None:
        self._objects.add(thing)

    def _after(self) -> None:
        for thing in list(self._objects):
            thing.begin_in_child()


at_fork = AtFork()


def shown(url: str) -> str:
    """A store's URL for people to read: without its password or token, and without options, which may hold one too."""
    head, separator, rest = url.partition("://")
    who, at, where = rest.rpartition("@")  # the last one: a password may have anything in it
    if not at or rest.startswith("/"):  # nobody, or a path alone
        return f"{head}{separator}{rest.partition('?')[0]}"
    user, _, secret = who.partition(":")
    return f"{head}{separator}{f'{user}:***' if secret else '***'}@{where.partition('?')[0]}"


#: How many digits the numbers of ids have that a guard makes, a session and a number: with as many in all they are in order
#: as texts, by which SQLite packs them.
DIGITS = 12


def new_session() -> str:
    """A short name for this process that no other will have."""
    import os

    return os.urandom(6).hex()


def run(command: Command, now: int, records: Any) -> Any:
    """Apply one command of a batch; an error becomes its reply, so that the others stand."""
    try:
        return command.apply(now, records)
    except HeadgateError as error:
        return error
