"""One `POST /v1/execute` to a guard, and what follows from each kind of answer. Sends nothing itself."""

from __future__ import annotations

from ...errors import HeadgateError, StoreFormatError, StoreUnavailable
from ...kernel.model import Ended
from ..remote.jobs import AnswerTimeout, ConnectionLost, OutcomeUnknown, fail_all
from .client import ErrorResponse
from .wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...kernel.commands import Command
    from ..base import Seen
    from .client import GuardEndpoint, Response
    from .wire import ToldPolicy

#: Seconds before another attempt at a guard that is starting.
PAUSE = 0.01

_REMEDIES = {
    401: "; give it a token: http://:TOKEN@host, or $HEADGATE_TOKEN",
    403: "; its token lacks the scope 'acquire'",
    404: "; the URL should lead to a guard, without /v1",
}


class KnownGates:
    """How far the guard's gates had come, as this process was told; `lost` is called with one that has lost its state."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost = lost
        #: Gate → its sequence number in the last reply that this process got, and its epoch.
        self.seen: dict[str, int] = {}
        self.epochs: dict[str, str] = {}

    def note(self, seen: dict[str, Seen]) -> None:
        """Take note of what an answer says besides its replies. The guard has compared what was sent with its store."""
        for gate, (seq, epoch) in seen.items():
            if seq > self.seen.get(gate, 0):
                self.seen[gate] = seq
            known = self.epochs.get(gate)
            if epoch and known != epoch:
                self.epochs[gate] = epoch
                if known is not None:
                    self._lost(gate)


class GuardRequest:
    """Jobs that are sent together, in one HTTP request."""

    def __init__(
        self,
        endpoint: GuardEndpoint,
        known: KnownGates,
        jobs: list[Any],
        on_policy: Callable[[str, ToldPolicy], None],
    ) -> None:
        self._endpoint = endpoint
        #: Told of a gate's policy, where the guard has another than commands were made with; before their replies are.
        self._on_policy = on_policy
        self._known = known
        self.jobs = jobs
        self._commands: list[Command] = []
        self._attempts = 0
        #: The answer to an earlier attempt was lost.
        self._answer_lost = False

    def encode(self) -> bytes:
        """The bytes of the request. From now on it may have reached the guard."""
        for job in self.jobs:
            job.sent = True
        self._commands = [command for job in self.jobs for command in job.commands]
        return self._endpoint.post("/v1/execute", encode(self._commands, self._known.seen, self._known.epochs))

    def hand_out(self, response: Response) -> bool:
        """Give each job its replies. Returns whether the connection may be used again. Raises ErrorResponse."""
        try:
            replies, seen, policies = decode(response.checked(), self._commands)
        except StoreFormatError as error:
            fail_all(self.jobs, StoreFormatError(f"{self._endpoint.shown}: {error}"))
            return False
        for gate, told in policies.items():
            self._on_policy(gate, told)
        self._known.note(seen)
        if self._answer_lost:
            # "It had already ended" may be the work of the first attempt.
            replies = [Ended(at=reply.at) if reply.__class__ is Ended and reply.lost else reply for reply in replies]
        at = 0
        for job in self.jobs:
            mine = replies[at : at + len(job.commands)]
            at += len(job.commands)
            # The guard is there, and its own store is not: for a gate here that is the same.
            away = next((reply for reply in mine if isinstance(reply, StoreUnavailable)), None)
            if away is None:
                job.finish(mine)
            else:
                job.fail(away)
        return response.keeps

    def retry_pause(self, error: Exception, left_s: float) -> float | None:
        """Seconds until the request should go again; None when it should not, and its jobs have failed."""
        self._attempts += 1
        if isinstance(error, ConnectionLost) and error.connected and left_s > PAUSE:
            again = [job for job in self.jobs if job.repeatable]
            for job in self.jobs:
                if job not in again:
                    told = (
                        f"{self._endpoint.shown}: the answer was lost ({error}), and whether it was done is not known"
                    )
                    job.fail(OutcomeUnknown(told))
            self.jobs, self._answer_lost = again, True
            return 0.0 if self._attempts == 1 else PAUSE
        # What a guard refuses with a status was not decided, unless an earlier attempt was.
        undecided = isinstance(error, ErrorResponse) and not self._answer_lost
        if isinstance(error, ErrorResponse) and error.status in (400, 413, 415, 422, 426):
            failure: HeadgateError = StoreFormatError(
                f"{self._endpoint.shown} does not understand this version of Headgate: {error.text}; upgrade the older "
                f"of the two"
            )
        else:
            failure = self.unavailable(error)
        fail_all(self.jobs, failure, undecided=undecided)
        return None

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """An error in words for people."""
        shown = self._endpoint.shown
        if isinstance(error, AnswerTimeout):
            told = f"{shown} does not answer within {self._endpoint.timeout * 1000:.0f} ms"
        elif isinstance(error, ErrorResponse):
            told = f"{shown} refuses: {error.text}{_REMEDIES.get(error.status, '')}"
        else:
            told = f"{shown} cannot be reached: {error}"
        failure = StoreUnavailable(told)
        failure.__cause__ = error
        return failure
