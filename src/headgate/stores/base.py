"""The store port: what a gate needs of the place where its state lives."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

from ..errors import HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NamedTuple, Protocol

    from ..kernel.commands import Command
    from ..kernel.model import Wake
    from ..kernel.plan import Policy
    from ..kernel.records import DictRecords

    class Seen(NamedTuple):
        """How far a gate has come, as a process was told: what it compares with the next reply."""

        number: int
        #: Empty where no epoch is known.
        epoch: str

    #: Called with a delay in microseconds, or None: the ticket was called. From any thread; must not block.
    Listener = Callable[[int | None], None]

    class Store(Protocol):
        """Decides commands. Each command is atomic by itself; a batch costs one round trip.

        The store guarantees the atomicity: `memory` and `sqlite` run `command.apply` inside a lock or a transaction.
        """

        #: As it was opened.
        url: str
        #: What it can do beside deciding.
        capabilities: Capabilities
        #: This process, as far as lines are concerned. Another one after a fork.
        session: str
        #: What keeps leases and tickets alive here; gates set it, and it goes with the store.
        keeper: Any
        #: Told the name of a gate whose state was lost; gates set it.
        on_loss: Callable[[str], None]

        def execute(self, commands: Sequence[Command]) -> list[Any]:
            """Replies in the order of the commands; an error takes the place of a reply. Raises StoreUnavailable."""

        async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
            """`execute` without blocking the event loop."""

        def decide(self, command: Command) -> Any:
            """`execute` for one command: the fast path. Raises every error, also those that `execute` hands back."""

        def listen(self, ticket: str, listener: Listener) -> None:
            """Waking: have the listener called when the ticket is called, or its waiter should look again."""

        def unlisten(self, ticket: str) -> None:
            """Waking: forget the listener of a ticket. A ticket without one is no error."""

        def close(self) -> None:
            """Let go of files, sockets and threads. What is in the store stays."""

    class InProcess(Protocol):
        """The methods of a store with `Capabilities.in_process`: its state is in this process."""

        def caller(self, gate: str) -> Callable[..., Any]:
            """`admit` and `end` without a command object."""

        def prepared(self, gate: str, prepare: Callable[[Here], Any]) -> Any:
            """Asks that are all alike, made ready once for the state where it is."""

        def now(self) -> int:
            """Its time, in microseconds."""

    class Forwarding(Protocol):
        """The methods of a store with `Capabilities.forwards_wakes`: it tells one process what concerns another."""

        def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
            """Have the wakes of another process's tickets told here."""

        def disown(self, session: str) -> None:
            """No longer tell the wakes of that process here."""

    class Comparing(Protocol):
        """The method of a store with `Capabilities.compares_seen`: it notices lost state for processes behind a guard."""

        def saw(self, gate: str, number: int = 0, epoch: str = "") -> Seen:
            """A process was told this sequence number and epoch. Returns what is known here, to tell it next."""

    class AtOnce(Protocol):
        """The methods of a store with `Capabilities.decides_at_once`, for event loops. None: use `aexecute`."""

        def at_once(self, command: Command) -> Any:
            """The reply of an uncontended command that takes no waiting; an error is handed back in its place."""

        def all_at_once(self, commands: Sequence[Command]) -> list[Any] | None:
            """The replies of commands that came together, where that takes no waiting. Raises StoreUnavailable."""

    class PolicySource(Protocol):
        """The methods of a store with `Capabilities.has_policies`: it knows the limits of its gates."""

        def policies(self) -> dict[str, Policy]:
            """The policies of its gates by name. Raises StoreUnavailable."""

        def follow(self, gate: str, adopt: Callable[[Policy, Sequence[str], bool], None]) -> None:
            """Have a method called whenever the store tells that a gate has another policy than an ask was made with:
            the policy, how the two differ in words, and whether the ask was decided all the same. The method is forgotten
            with its object. It is called in any thread, before the replies are handed out."""

    class Examined(Protocol):
        """The method of a store with `Capabilities.examines`, for `headgate doctor`."""

        def examine(self) -> list[tuple[str, str, str]]:
            """What there is to know of the server: level, detail, remedy."""

    class Created(Protocol):
        """The method of a store with `Capabilities.creates`, for `headgate doctor --create`."""

        def create(self) -> list[str]:
            """Make what the store needs (a table), and say what was made."""

else:
    Seen = namedtuple("Seen", "number epoch")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beside deciding. It is declared: gates and the guard never look for a method."""

    #: A reply can be lost on the way, so every ask needs an id that is remembered.
    remote: bool = False
    #: `decide` never waits for anything, so an event loop may call it.
    instant: bool = False
    #: The state is in this process: `InProcess`.
    in_process: bool = False
    #: Wakes of other processes can be told here: `Forwarding`.
    forwards_wakes: bool = False
    #: It compares what other processes have seen of a gate with its own state: `Comparing`.
    compares_seen: bool = False
    #: An event loop may have it decide without waiting: `AtOnce`.
    decides_at_once: bool = False
    #: It knows the policies of its gates, so a gate may be made without limits: `PolicySource`.
    has_policies: bool = False
    #: `headgate doctor` can ask it about its server: `Examined`; and have it made: `Created`.
    examines: bool = False
    creates: bool = False
    #: Microseconds for which it holds a call by default; None: as long as every store that wakes waiters.
    claim_us: int | None = None
    #: Microseconds by which the clocks of two processes may be apart. Limits are widened by it.
    clock_spread_us: int = 0
    #: The kinds of limit that it can decide; None: all, since the kernel decides.
    kinds: frozenset[str] | None = None


def declared(store: Any) -> Store:
    """A store that was handed to a gate. One that declares nothing has `remote` and `instant`, as stores once had."""
    if not hasattr(store, "capabilities"):
        store.capabilities = Capabilities(remote=store.remote, instant=store.instant)
    return store  # type: ignore[no-any-return]


def ignore_loss(gate: str) -> None:
    """Until a gate says otherwise."""


class Here:
    """The state of one gate in this process, and what it takes to decide about it. Time is `ticks() // 1000 + offset`."""

    __slots__ = ("lock", "offset", "records", "ticks")

    def __init__(self, lock: Any, records: DictRecords, ticks: Callable[[], int], offset: int) -> None:
        #: To take it, to let go of it, and to ask whether this thread has it.
        self.lock: tuple[Callable[[], object], Callable[[], None], Callable[[], bool]] = (
            lock.acquire,
            lock.release,
            lock._is_owned,
        )
        self.records = records
        self.ticks = ticks
        self.offset = offset


class Listeners:
    """The waiters of this process by ticket. Single operations on dicts are safe under threads."""

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
        import sys

        for thing in list(self._objects):
            try:
                thing.begin_in_child()
            except Exception:
                # The others must not go on with their parent's sessions, sockets and locks because of this one.
                sys.excepthook(*sys.exc_info())


at_fork = AtFork()


def shown(url: str) -> str:
    """A store's URL for people to read: without its password or token, and without options, which may hold one too.

    A prefix stays: without it two stores on one server would look the same.
    """
    head, separator, rest = url.partition("://")
    login, at, where = rest.rpartition("@")  # the last one: a password may have anything in it
    if not at or rest.startswith("/"):  # no user, or a path alone
        login, where = "", rest
    else:
        user, _, secret = login.partition(":")
        login = f"{user}:***@" if secret else "***@"
    where, _, query = where.partition("?")
    prefix = next((f"?{option}" for option in query.split("&") if option.startswith("prefix=")), "")
    return f"{head}{separator}{login}{where}{prefix}"


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


def checked(reply: Any) -> Any:
    """The reply, or raises the error that stands in its place."""
    if isinstance(reply, HeadgateError):
        raise reply
    return reply
