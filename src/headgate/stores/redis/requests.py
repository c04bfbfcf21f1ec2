"""What goes to a Redis server in one script call, and what is to be done about each kind of answer. Sends nothing itself.

`Calls` is shared by the two ways of sending (`redis_threads`, `redis_aio`): it makes the arguments of a call, takes its
answer apart, and says after an error whether the call may go again, where, and after which pause.
"""

from __future__ import annotations

from time import monotonic_ns

from ...errors import StoreFormatError, StoreUnavailable
from ...kernel.model import Ended
from ..remote.coalescing import OutcomeUnknown
from .client import slot_of
from .errors import Broken, Refused, Silent
from .script import digest, function, tag, text
from .wire import NeedCalendar, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from .client import Address, Endpoint
    from .wire import Decoded

    #: The gate of an ask, and the bytes of its command but for one word.
    Prepared = tuple[str, bytes, bytes]

#: Seconds before another attempt while a server loads its data, or a cluster moves a slot.
PAUSE = 0.01

#: How often a caller's clock is set by the server's, where scripts may not ask for the time: every so many microseconds.
CALIBRATE_EVERY = 30_000_000


class Call:
    """The jobs of one gate that go out together."""

    __slots__ = (
        "asking",
        "calendars",
        "commands",
        "elsewhere",
        "first",
        "gate",
        "jobs",
        "loading",
        "repeated",
        "spelt",
        "tries",
    )

    def __init__(self, gate: str, jobs: list[Any]) -> None:
        self.gate = gate
        self.jobs = jobs
        self.commands: Sequence[Command] = ()
        #: Send the script itself: the server does not know it yet.
        self.spelt = False
        #: Load the library first: the server does not know it yet.
        self.loading = False
        #: Where the cluster said that it should go this once.
        self.elsewhere: Address | None = None
        self.asking = False
        #: The zones that the server asked for.
        self.calendars: tuple[tuple[str, int], ...] = ()
        self.tries = 0
        #: None of it was sent before.
        self.first = True
        #: An answer to it was lost.
        self.repeated = False

    def leaves(self) -> None:
        """From now on it may have reached a server."""
        self.first = True
        for job in self.jobs:
            if job.sent:
                self.first = False
            job.sent = True

    def fail(self, error: StoreUnavailable | StoreFormatError) -> None:
        refused = isinstance(error.__cause__, Refused) and not self.repeated
        for job in self.jobs:
            # One error each: they are raised in different threads.
            failure = type(error)(*error.args)
            failure.__cause__ = error.__cause__
            if isinstance(failure, StoreUnavailable) and (refused or not job.sent):
                failure.decided = False
            job.fail(failure)


class Calls:
    """What all calls of a store have in common."""

    def __init__(self, endpoint: Endpoint, clock: Clock | None, lost: Callable[[str], None]) -> None:
        self.endpoint = endpoint
        self.lost = lost
        #: How far each gate had come, as this process was told.
        self.seen: dict[str, int] = {}
        #: The time that is sent along; None: the server's own.
        self.clock = clock
        #: The script is kept on the server as a function (Redis 7, Valkey), until one does not know or allow that.
        self.functions = True
        #: The server does not let scripts ask for the time.
        self.timeless = False
        self._offset = 0
        self._set_at = -CALIBRATE_EVERY
        #: Slot → address, as far as it is known; for one server, nothing.
        self.slots: dict[int, Address] = {}
        self._slot_of: dict[str, int] = {}

    # --- sending --------------------------------------------------------------------------------------------------

    def words(self, call: Call) -> list[Any]:
        """The command that is sent."""
        gate, jobs = call.gate, call.jobs
        call.commands = commands = (
            jobs[0].commands if len(jobs) == 1 else [command for job in jobs for command in job.commands]
        )
        return self.ask(gate, commands, call.calendars, call.spelt, call.first)

    def ask(
        self,
        gate: str,
        commands: Sequence[Command],
        calendars: tuple[tuple[str, int], ...] = (),
        spelt: bool = False,
        first: bool = True,
    ) -> list[Any]:
        clock = self.clock
        now = 0 if clock is None else clock()
        arguments = encode(gate, commands, seen=self.seen.get(gate, 0), now=now, calendars=calendars, first=first)
        if self.functions:
            return ["FCALL", function(), 1, tag(gate), *arguments]
        if spelt:
            return ["EVAL", text(), 1, tag(gate), *arguments]
        return ["EVALSHA", digest(), 1, tag(gate), *arguments]

    def prepared(self, ask: Command) -> Prepared | None:
        """An ask that was sent and will be again, as bytes: what comes before the number that its gate has come to, and
        what comes after. None where the time is sent along.
        """
        if self.clock is not None:
            return None
        words = self.ask(ask.gate, (ask,), first=False)
        return ask.gate, b"*%d\r\n%b" % (len(words), _spelt(words[:5])), _spelt(words[6:])

    def complete(self, prepared: Prepared) -> bytes:
        gate, before, after = prepared
        return before + _spelt((self.seen.get(gate, 0),)) + after

    def take(self, call: Call, raw: Any) -> bool:
        """Hand out an answer; False when the server needs to be told more first, and the call goes again."""
        try:
            answer = decode(call.commands, raw)
        except NeedCalendar as need:
            call.calendars += need.calendars
            return False
        except StoreFormatError as error:
            call.fail(error)
            return True
        replies = self.answered(call.gate, answer).replies
        if call.repeated:
            # "It had already ended" may be the work of the first attempt.
            replies = [Ended(at=reply.at) if reply.__class__ is Ended and reply.lost else reply for reply in replies]
        jobs = call.jobs
        if len(jobs) == 1:
            jobs[0].finish(replies)
        elif len(jobs) == len(replies):
            for job, reply in zip(jobs, replies, strict=True):
                job.finish([reply])
        else:
            at = 0
            for job in jobs:
                count = len(job.commands)
                job.finish(replies[at : at + count])
                at += count
        return True

    def answered(self, gate: str, answer: Decoded) -> Decoded:
        """What every answer tells besides its replies."""
        if answer.seq > self.seen.get(gate, 0):
            self.seen[gate] = answer.seq
        if answer.lost:
            self.lost(gate)
        return answer

    def after_loading(self, call: Call, refused: Refused | None) -> None:
        """What became of loading the library. Raises what the call cannot go on with."""
        if refused is not None and "already exists" not in refused.text:  # which is when another process was first
            if refused.kind not in ("other", "permission"):
                raise refused
            self.functions = False
        call.loading = False

    # --- time -----------------------------------------------------------------------------------------------------

    def _own_time(self) -> int:
        return monotonic_ns() // 1000 + self._offset

    @property
    def must_ask_time(self) -> bool:
        """Whether the caller's clock should be set by the server's before the next call."""
        return self.timeless and monotonic_ns() // 1000 - self._set_at >= CALIBRATE_EVERY

    def set_time(self, answer: Any, before: int) -> None:
        """Set the caller's clock by what TIME answered; `before` is when it was asked, in monotonic nanoseconds.

        Half a round trip is not added: a clock that is late refuses a moment too long, an early one admits too soon.
        """
        from time import time_ns

        steady = monotonic_ns() // 1000
        self._set_at = steady
        if answer is None:  # not even that is allowed: this machine's own
            self._offset = time_ns() // 1000 - steady
        else:
            self._offset = int(answer[0]) * 1_000_000 + int(answer[1]) - steady

    # --- where to -------------------------------------------------------------------------------------------------

    def slot(self, gate: str) -> int:
        slot = self._slot_of.get(gate)
        if slot is None:
            slot = self._slot_of[gate] = slot_of(tag(gate))
        return slot

    def address(self, call: Call) -> Address | None:
        """Where a call goes; None: the cluster has to be asked first."""
        if not self.endpoint.cluster:
            return self.endpoint.start
        return call.elsewhere or self.slots.get(self.slot(call.gate))

    def masters(self) -> list[Address]:
        """Whom to ask about the cluster: those that were there, and the one in the URL."""
        return list(dict.fromkeys([*self.slots.values(), self.endpoint.start]))

    def learn(self, asked: Address, answer: Any) -> None:
        """What CLUSTER SLOTS told."""
        slots: dict[int, Address] = {}
        for first, last, master, *_ in answer:
            host = master[0].decode() if master[0] else asked[0]
            slots.update(dict.fromkeys(range(first, last + 1), (host, master[1])))
        self.slots = slots

    # --- what went wrong ------------------------------------------------------------------------------------------

    def after(self, call: Call, error: Exception) -> float:
        """Seconds until the call should go again. Raises what its callers are to be told when it should not."""
        call.tries += 1
        if not (isinstance(error, Refused) and error.kind in ("noscript", "nofunction")):
            call.elsewhere, call.asking = None, False  # else the script is missing just there
        if isinstance(error, Refused):
            return self._refused(call, error)
        if isinstance(error, Broken) and error.begun:
            self.forget_unrepeatable(call, error)
            call.repeated = True
            self._look_around()
            return 0.0 if call.tries == 1 else PAUSE
        if isinstance(error, Broken) and self.endpoint.cluster and call.tries < 3:
            self._look_around()  # a master is gone; another may have its slots
            return PAUSE
        raise self.unavailable(error)

    def _refused(self, call: Call, error: Refused) -> float:
        kind = error.kind
        if kind == "noscript":
            call.spelt = True
            return 0.0
        if kind == "nofunction" and call.tries < 5:
            call.loading = True
            return 0.0
        if _about_functions(kind, error.text):  # also where others have learnt it since this was sent
            self.functions = False
            return 0.0
        if kind == "moved" and error.address is not None:
            self.slots = {**self.slots, self.slot(call.gate): error.address}
            return 0.0 if call.tries < 5 else PAUSE
        if kind in ("moving", "ask", "loading", "readonly"):
            if kind in ("moving", "readonly"):
                self._look_around()
            return PAUSE
        if self.clock is None and kind in ("other", "permission") and _about_time(error.text):
            self.timeless = True
            self.clock = self._own_time
            return 0.0
        if kind == "foreign":
            raise StoreFormatError(
                f"{self.endpoint.shown}: a key under {tag(call.gate)} is not ours: {error.text}; remove it, or use "
                f"another database"
            )
        raise self.unavailable(error)

    def _look_around(self) -> None:
        self.slots = {}

    def forget_unrepeatable(self, call: Call, error: Exception) -> None:
        """Fail those that must not be sent twice."""
        again = []
        for job in call.jobs:
            if job.repeatable:
                again.append(job)
            else:
                told = f"{self.endpoint.shown}: the answer was lost ({error}), and whether it was done is not known"
                job.fail(OutcomeUnknown(told))
        call.jobs = again

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """An error in words for people."""
        shown = self.endpoint.shown
        if isinstance(error, Silent):
            told = f"{shown} does not answer within {self.endpoint.timeout * 1000:.0f} ms"
        elif isinstance(error, Refused):
            told = f"{shown} refuses: {error.text}{REMEDIES.get(error.kind, '')}"
        else:
            told = f"{shown} cannot be reached: {error}"
        failure = StoreUnavailable(told)
        failure.__cause__ = error
        return failure


def _spelt(words: Sequence[Any]) -> bytes:
    """Words as they are sent to a server."""
    spelt = b""
    for word in words:
        raw = word if word.__class__ is bytes else str(word).encode()
        spelt += b"$%d\r\n%b\r\n" % (len(raw), raw)
    return spelt


def _about_functions(kind: str, text: str) -> bool:
    """Whether a server knows no functions, or does not let this user call them."""
    lower = text.lower()
    return kind in ("other", "permission") and "fcall" in lower and ("unknown" in lower or kind == "permission")


def _about_time(text: str) -> bool:
    """Whether a server may have refused because the script asked for the time, which some do. Words differ."""
    known = ("'time'", "not allowed from script", "Unknown Redis command called from script", "deterministic")
    return any(words in text for words in known)


REMEDIES = {
    "auth": "; check the user and the password in the store's URL",
    "permission": "; its user needs the commands of the page on Redis in production",
    "oom": "; it has no memory left: raise its maxmemory",
    "loading": "; it is still reading its data",
    "readonly": "; it is a replica: the URL should lead to the master",
    "moving": "; the cluster is moving or missing the slot of this gate",
    "ask": "; the cluster is moving the slot of this gate",
}
