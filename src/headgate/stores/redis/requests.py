"""What goes to a Redis server in one script call, and what follows from each kind of answer. Sends nothing itself.

`RedisRequests` is shared by the two ways of sending (`threads.py`, `aio.py`): it makes the words of a request, hands out
its answer, and says after an error whether the request may go again, where to, and after which pause.
"""

from __future__ import annotations

from time import monotonic_ns

from ...errors import StoreFormatError, StoreUnavailable
from ...kernel.model import Ended
from ..remote.jobs import AnswerTimeout, ConnectionLost, OutcomeUnknown, fail_all
from .client import slot_of
from .errors import ErrorReply
from .script import digest, function, tag, text
from .wire import NOTICED_BEFORE, NeedCalendar, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from .client import Address
    from .endpoint import RedisEndpoint
    from .wire import Decoded

    #: The gate of an ask, and the bytes of its request before and after the gate's sequence number and epoch.
    EncodedAsk = tuple[str, bytes, bytes]

#: Seconds before another attempt while a server loads its data, or a cluster moves a slot.
PAUSE = 0.01

#: Where scripts may not ask for the time, the caller's clock is set by the server's every so many microseconds.
CALIBRATE_EVERY = 30_000_000


class RedisRequest:
    """Jobs about one gate that are sent together, in one script call."""

    __slots__ = (
        "answer_lost",
        "attempts",
        "calendars",
        "commands",
        "gate",
        "jobs",
        "loads_library",
        "redirected_to",
        "says_asking",
        "sends_script",
    )

    def __init__(self, gate: str, jobs: list[Any]) -> None:
        self.gate = gate
        self.jobs = jobs
        self.commands: Sequence[Command] = ()
        #: The server does not know the script yet: send its text.
        self.sends_script = False
        #: The server does not know the library yet: load it first.
        self.loads_library = False
        #: Where a cluster said that the next attempt should go, and whether that has to begin with ASKING.
        self.redirected_to: Address | None = None
        self.says_asking = False
        #: The offsets of time zones that the server needs.
        self.calendars: tuple[tuple[str, int], ...] = ()
        self.attempts = 0
        #: The answer to an earlier attempt was lost.
        self.answer_lost = False

    def mark_sent(self) -> None:
        """From now on it may have reached a server."""
        for job in self.jobs:
            job.sent = True

    def fail(self, error: StoreUnavailable | StoreFormatError) -> None:
        fail_all(self.jobs, error, undecided=isinstance(error.__cause__, ErrorReply) and not self.answer_lost)


class RedisRequests:
    """What all requests of a store have in common: how a server is spoken to, and what is known of it."""

    def __init__(self, endpoint: RedisEndpoint, clock: Clock | None, lost: Callable[[str], None]) -> None:
        self.endpoint = endpoint
        self.lost = lost
        #: The store's: it stands for the epoch of a gate of which none is known.
        self.session = ""
        #: Gate → its sequence number in the last reply that this process got, and its epoch.
        self.seen: dict[str, int] = {}
        self.told: dict[str, str] = {}
        #: Gate → the epoch before which its state was lost, as this process has already reported.
        self._reported: dict[str, str] = {}
        #: The time that is sent along; None: the server's own.
        self.clock = clock
        #: The script is kept on the server as a function (Redis 7, Valkey), until one does not know or allow that.
        self.functions = True
        #: The server does not let scripts ask for the time, so requests carry the caller's.
        self.sends_time = False
        self._offset = 0
        self._calibrated_at = -CALIBRATE_EVERY
        #: Slot → address, as far as it is known; empty without a cluster.
        self.slots: dict[int, Address] = {}
        self._slot_of: dict[str, int] = {}

        #: Where the sentinels said that the master is; None: they have to be asked.
        self.master: Address | None = None

    def tag(self, gate: str) -> str:
        return tag(gate, self.endpoint.prefix)

    # --- sending --------------------------------------------------------------------------------------------------

    def words_of(self, request: RedisRequest) -> list[Any]:
        """The command that is sent for a request."""
        gate, jobs = request.gate, request.jobs
        request.commands = commands = (
            jobs[0].commands if len(jobs) == 1 else [command for job in jobs for command in job.commands]
        )
        return self.words(gate, commands, request.calendars, request.sends_script)

    def words(
        self,
        gate: str,
        commands: Sequence[Command],
        calendars: tuple[tuple[str, int], ...] = (),
        sends_script: bool = False,
    ) -> list[Any]:
        clock = self.clock
        now = 0 if clock is None else clock()
        seen, told = self.seen.get(gate, 0), self.told.get(gate, self.session)
        arguments = encode(gate, commands, seen=seen, told=told, now=now, calendars=calendars)
        if self.functions:
            return ["FCALL", function(), 1, self.tag(gate), *arguments]
        if sends_script:
            return ["EVAL", text(), 1, self.tag(gate), *arguments]
        return ["EVALSHA", digest(), 1, self.tag(gate), *arguments]

    def encode_ask(self, ask: Command) -> EncodedAsk | None:
        """An ask that was sent and will be again, encoded but for the gate's sequence number and epoch at that moment. None
        where requests carry the time.
        """
        if self.clock is not None:
            return None
        words = self.words(ask.gate, (ask,))
        return ask.gate, b"*%d\r\n%b" % (len(words), _bulk_strings(words[:5])), _bulk_strings(words[7:])

    def complete(self, ask: EncodedAsk) -> bytes:
        """The bytes of an encoded ask, as it is sent now."""
        gate, before, after = ask
        return before + _bulk_strings((self.seen.get(gate, 0), self.told.get(gate, self.session))) + after

    def hand_out(self, request: RedisRequest, raw: Any) -> bool:
        """Give each job its replies. Returns False when the request must go again, since the server needs to know more."""
        try:
            answer = decode(request.commands, raw)
        except NeedCalendar as need:
            request.calendars += need.calendars
            return False
        except StoreFormatError as error:
            request.fail(error)
            return True
        replies = self.answered(request.gate, answer).replies
        if request.answer_lost:
            # "It had already ended" may be the work of the first attempt.
            replies = [Ended(at=reply.at) if reply.__class__ is Ended and reply.lost else reply for reply in replies]
        jobs = request.jobs
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
        """Take note of what every answer says besides its replies: the sequence number, the epoch where it is not the one
        that was sent, and whether state was lost.
        """
        if answer.seq > self.seen.get(gate, 0):
            self.seen[gate] = answer.seq
        if answer.epoch:
            self.told[gate] = answer.epoch
        if answer.lost:
            # Clients of a guard come with an old epoch one after the other, for a loss that was reported.
            if answer.lost != NOTICED_BEFORE or self._reported.get(gate) != answer.epoch:
                self.lost(gate)
            if answer.epoch:
                self._reported[gate] = answer.epoch
        return answer

    def library_loaded(self, request: RedisRequest, error: ErrorReply | None) -> None:
        """Take note of how loading the library ended. Raises the error if the request cannot go on."""
        if error is not None and "already exists" not in error.text:  # which is when another process was first
            if error.kind not in ("other", "permission"):
                raise error
            self.functions = False
        request.loads_library = False

    # --- time -----------------------------------------------------------------------------------------------------

    def own_time(self) -> int:
        """The server's time by this process's clock."""
        return monotonic_ns() // 1000 + self._offset

    @property
    def must_calibrate(self) -> bool:
        """Whether this process's clock should be set by the server's before the next request."""
        return self.sends_time and monotonic_ns() // 1000 - self._calibrated_at >= CALIBRATE_EVERY

    def calibrate(self, answer: Any) -> None:
        """Set this process's clock by what TIME answered; None where the server does not allow that.

        Half a round trip is not added: a clock that is late refuses a moment too long, an early one admits too soon.
        """
        from time import time_ns

        steady = monotonic_ns() // 1000
        self._calibrated_at = steady
        if answer is None:  # by this machine's own
            self._offset = time_ns() // 1000 - steady
        else:
            self._offset = int(answer[0]) * 1_000_000 + int(answer[1]) - steady

    # --- where to -------------------------------------------------------------------------------------------------

    def slot(self, gate: str) -> int:
        slot = self._slot_of.get(gate)
        if slot is None:
            slot = self._slot_of[gate] = slot_of(self.tag(gate))
        return slot

    def address(self, request: RedisRequest) -> Address | None:
        """Where a request goes; None: `lookups` have to be asked first."""
        return request.redirected_to or self.address_of(request.gate)

    def address_of(self, gate: str) -> Address | None:
        """Where a gate is, as far as it is known."""
        endpoint = self.endpoint
        if endpoint.fixed:
            return endpoint.start
        return self.slots.get(self.slot(gate)) if endpoint.cluster else self.master

    def masters(self) -> list[Address]:
        """The masters as last known, and of a cluster the server in the URL."""
        if self.endpoint.sentinels:
            return [] if self.master is None else [self.master]
        return list(dict.fromkeys([*self.slots.values(), self.endpoint.start]))

    def lookups(self) -> list[tuple[Address, tuple[str, ...]]]:
        """Whom to ask where the gates are, and by which command; the first answer counts."""
        sentinels = self.endpoint.sentinels
        if sentinels:
            return [(address, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.endpoint.service)) for address in sentinels]
        return [(address, ("CLUSTER", "SLOTS")) for address in self.masters()]

    def learn(self, asked: Address, answer: Any) -> None:
        """Take over what was answered to a command of `lookups`. Raises ErrorReply where that is nothing."""
        if self.endpoint.sentinels:
            if answer is None:
                service, place = self.endpoint.service, ":".join(map(str, asked))
                raise ErrorReply(
                    "other", f"the sentinel {place} knows no master {service!r}; `SENTINEL MASTERS` lists them"
                )
            self.master = (answer[0].decode(), int(answer[1]))
            return
        slots: dict[int, Address] = {}
        for first, last, master, *_ in answer:
            host = master[0].decode() if master[0] else asked[0]
            slots.update(dict.fromkeys(range(first, last + 1), (host, master[1])))
        self.slots = slots

    # --- retries --------------------------------------------------------------------------------------------------

    def retry_pause(self, request: RedisRequest, error: Exception) -> float:
        """Seconds until the request should go again. Raises what its jobs fail with when it should not."""
        request.attempts += 1
        if not (isinstance(error, ErrorReply) and error.kind in ("noscript", "nofunction")):
            request.redirected_to, request.says_asking = None, False  # else the script is missing just there
        if isinstance(error, ErrorReply):
            return self._after_error_reply(request, error)
        if isinstance(error, ConnectionLost) and error.connected:
            self.fail_unrepeatable(request, error)
            request.answer_lost = True
            self._forget_places()
            return 0.0 if request.attempts == 1 else PAUSE
        if isinstance(error, ConnectionLost) and error.greeting and request.attempts < 3:
            self._forget_places()
            return PAUSE  # nothing was sent on that connection
        if isinstance(error, ConnectionLost) and not self.endpoint.fixed and request.attempts < 3:
            self._forget_places()  # a master is gone; another may have its gates
            return PAUSE
        raise self.unavailable(error)

    def _after_error_reply(self, request: RedisRequest, error: ErrorReply) -> float:
        kind = error.kind
        if kind == "noscript":
            request.sends_script = True
            return 0.0
        if kind == "nofunction" and request.attempts < 5:
            request.loads_library = True
            return 0.0
        if _about_functions(kind, error.text):  # also where another request has learnt it since this one was sent
            self.functions = False
            return 0.0
        if kind == "moved" and error.address is not None:
            self.slots = {**self.slots, self.slot(request.gate): error.address}
            return 0.0 if request.attempts < 5 else PAUSE
        if kind in ("moving", "ask", "loading", "readonly", "busy"):
            if kind in ("moving", "readonly"):
                self._forget_places()
            return PAUSE
        if self.clock is None and kind in ("other", "permission") and _about_time(error.text):
            self.sends_time = True
            self.clock = self.own_time
            return 0.0
        if kind == "foreign":
            raise StoreFormatError(
                f"{self.endpoint.shown}: a key under {self.tag(request.gate)} is not ours: {error.text}; remove it, or use "
                f"another database"
            )
        raise self.unavailable(error)

    def _forget_places(self) -> None:
        """A server is gone, or no longer what it was: ask again where the gates are."""
        self.slots = {}
        self.master = None

    def fail_unrepeatable(self, request: RedisRequest, error: Exception) -> None:
        """Fail the jobs that must not be sent twice."""
        again = []
        for job in request.jobs:
            if job.repeatable:
                again.append(job)
            else:
                told = f"{self.endpoint.shown}: the answer was lost ({error}), and whether it was done is not known"
                job.fail(OutcomeUnknown(told))
        request.jobs = again

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """An error in words for people."""
        shown = self.endpoint.shown
        if isinstance(error, AnswerTimeout):
            told = f"{shown} does not answer within {self.endpoint.timeout * 1000:.0f} ms"
        elif isinstance(error, ErrorReply):
            told = f"{shown} refuses: {error.text}{REMEDIES.get(error.kind, '')}"
        else:
            told = f"{shown} cannot be reached: {error}"
        failure = StoreUnavailable(told)
        failure.__cause__ = error
        return failure


def _bulk_strings(words: Sequence[Any]) -> bytes:
    """Words as they are sent to a server."""
    sent = b""
    for word in words:
        raw = word if word.__class__ is bytes else str(word).encode()
        sent += b"$%d\r\n%b\r\n" % (len(raw), raw)
    return sent


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
    "busy": "; a script of another client has kept it for seconds: end that one with SCRIPT KILL if it hangs",
    "readonly": "; it is a replica: the URL should lead to the master",
    "moving": "; the cluster is moving or missing the slot of this gate",
    "ask": "; the cluster is moving the slot of this gate",
}
