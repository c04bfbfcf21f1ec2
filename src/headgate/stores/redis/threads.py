"""Sending from threads, by connections that are kept between requests."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, sleep

from ...errors import StoreFormatError, StoreUnavailable
from ..remote.jobs import AnswerTimeout, ConnectionLost, ThreadJob
from .coalescer import NO_REPLY, GateThreadCoalescer
from .errors import ErrorReply
from .requests import RedisRequest
from .script import library
from .wire import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...kernel.commands import Command
    from .client import Address, RedisConnection
    from .requests import RedisRequests

#: Idle connections that are kept for each server.
KEPT = 8


class RedisThreadSender:
    """The requests of a process's threads, and their connections."""

    def __init__(self, requests: RedisRequests) -> None:
        self._requests = requests
        self._coalescers: dict[str, GateThreadCoalescer] = {}
        self._idle: dict[Address, list[RedisConnection]] = {}

    def coalescer(self, gate: str) -> GateThreadCoalescer:
        return self._coalescers.setdefault(gate, GateThreadCoalescer(self, gate))

    # --- one request ----------------------------------------------------------------------------------------------

    def decide_idle(self, gate: str, command: Command) -> Any:
        """The reply to one command by an idle connection; NO_REPLY where there is none, so that `run` has to make one."""
        connection = self.take_idle(gate)
        return NO_REPLY if connection is None else self.reply_to(gate, command, connection)

    def take_idle(self, gate: str) -> RedisConnection | None:
        """An idle connection, to be given to `reply_to` or back to `keep`."""
        requests = self._requests
        if requests.sends_time:
            return None
        try:
            return self._idle[requests.address_of(gate)].pop()  # type: ignore[index]
        except LookupError:
            return None

    def reply_to(self, gate: str, command: Command, connection: RedisConnection, sent: bool = False) -> Any:
        """The reply to one command that goes by a connection, or was `sent` by it a moment ago."""
        requests = self._requests
        commands = (command,)
        end = monotonic() + requests.endpoint.timeout
        try:
            raw = connection.read() if sent else connection.roundtrip(*requests.words(gate, commands))
        except (ErrorReply, ConnectionLost, AnswerTimeout) as error:
            job = ThreadJob(commands)
            job.sent = True
            self.run(RedisRequest(gate, [job]), end, connection, error)
            return job.result()[0]
        except BaseException:
            connection.close()
            raise
        self.keep(connection)
        if raw[0].__class__ is int:
            return requests.answered(gate, decode(commands, raw)).replies[0]
        job = ThreadJob(commands)  # the server needs to be told more, or is of another version
        request = RedisRequest(gate, [job])
        request.commands = commands
        if not requests.hand_out(request, raw):
            self.run(request, end)
        return job.result()[0]

    def run(
        self,
        request: RedisRequest,
        end: float = 0.0,
        connection: RedisConnection | None = None,
        failed: Exception | None = None,
    ) -> None:
        """Send a request until it is answered, or its time is over. Each of its jobs is done then.

        `failed` is the error of a first attempt by `connection`, which had until `end` as well.
        """
        requests = self._requests
        end = end or monotonic() + requests.endpoint.timeout
        while request.jobs:
            error: Exception
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                connection = None
                connection = self._connect(request, end)
                if requests.must_calibrate:
                    self._calibrate(connection)
                if request.loads_library:
                    self._load(connection, request)
                if request.says_asking:
                    connection.roundtrip("ASKING")
                request.mark_sent()
                raw = connection.roundtrip(*requests.words_of(request))
                self.keep(connection)
                connection = None
                if requests.hand_out(request, raw):
                    return
                continue
            except ErrorReply as reply:
                if connection is not None and reply.kind not in ("loading", "readonly"):
                    self.keep(connection)
                    connection = None
                if reply.kind == "ask" and self._follow(request, reply, end):
                    continue
                error = reply
            except (ConnectionLost, AnswerTimeout) as lost:
                error = lost
                if connection is not None:
                    self._close_idle(connection.address)
            finally:
                if connection is not None:
                    connection.close()
            try:
                pause = requests.retry_pause(request, error)
                if monotonic() + pause >= end:
                    raise requests.unavailable(error)
            except (StoreUnavailable, StoreFormatError) as failure:
                request.fail(failure)
                return
            if pause:
                sleep(pause)

    def run_all(self, several: list[RedisRequest]) -> None:
        """Requests about several gates: all that go to one server are sent before its first answer is read."""
        requests = self._requests
        end = monotonic() + requests.endpoint.timeout
        groups: dict[Address | None, list[RedisRequest]] = {}
        for request in several:
            groups.setdefault(None if requests.must_calibrate else requests.address(request), []).append(request)
        again = groups.pop(None, [])
        for group in groups.values():
            again += self._pipelined(group, end)
        for request in again:  # one by one, with all that can be done about each
            self.run(request)

    def _pipelined(self, group: list[RedisRequest], end: float) -> list[RedisRequest]:
        """Send a group of requests to one server. Returns those that have to go again."""
        again: list[RedisRequest] = []
        answered = 0
        try:
            connection = self._connect(group[0], end)
        except (ErrorReply, ConnectionLost, AnswerTimeout):
            return group
        try:
            for request in group:
                request.mark_sent()
                connection.send(*self._requests.words_of(request))
            for request in group:
                try:
                    raw = connection.read()
                    answered += 1
                    if not self._requests.hand_out(request, raw):
                        again.append(request)
                except ErrorReply:
                    answered += 1
                    again.append(request)
        except (ConnectionLost, AnswerTimeout) as error:
            connection.close()
            lost = group[answered:]
            for request in lost:
                self._requests.fail_unrepeatable(request, error)
                request.answer_lost = True
            return again + lost
        except BaseException:
            connection.close()
            raise
        self.keep(connection)
        return again

    # --- connections ----------------------------------------------------------------------------------------------

    def _connect(self, request: RedisRequest, end: float) -> RedisConnection:
        """An idle connection to the server of a request, or a new one."""
        address = self._requests.address(request)
        if address is None:
            self._look_up(end)
            address = self._requests.address(request)
            if address is None:
                raise ErrorReply("moving", "CLUSTERDOWN no master serves the slot of this gate")
        with suppress(LookupError):
            return self._idle[address].pop()
        return self._requests.endpoint.connect(address, end - monotonic())

    def keep(self, connection: RedisConnection) -> None:
        idle = self._idle.setdefault(connection.address, [])
        if connection.short_timeouts or len(idle) >= KEPT:
            connection.close()
        else:
            idle.append(connection)

    def _close_idle(self, address: Address) -> None:
        """One connection to a server is gone, so the others are likely to be."""
        for connection in self._idle.pop(address, ()):
            connection.close()

    def ask(self, *words: Any, address: Address | None = None) -> Any:
        """The answer to any command, for `headgate doctor`. Raises ErrorReply, ConnectionLost or AnswerTimeout."""
        endpoint = self._requests.endpoint
        connection = endpoint.connect(address or endpoint.start, endpoint.timeout)
        try:
            return connection.roundtrip(*words)
        finally:
            connection.close()

    def _look_up(self, end: float) -> None:
        """Ask where the gates are, until one of those who know answers: the masters of a cluster, or the sentinels."""
        error: Exception | None = None
        for address, words in self._requests.lookups():
            try:
                connection = self._requests.endpoint.connect(address, end - monotonic())
                try:
                    self._requests.learn(address, connection.roundtrip(*words))
                finally:
                    connection.close()
                return
            except (ErrorReply, ConnectionLost, AnswerTimeout) as failure:
                error = failure
        assert error is not None
        raise error

    def _follow(self, request: RedisRequest, reply: ErrorReply, end: float) -> bool:
        """The slot is being moved to another master: have the request go there if all keys of the gate have arrived."""
        source, slot = self._requests.address(request), self._requests.slot(request.gate)
        with suppress(ErrorReply, ConnectionLost, AnswerTimeout):
            connection = self._requests.endpoint.connect(source or self._requests.endpoint.start, end - monotonic())
            try:
                count = connection.roundtrip("CLUSTER", "COUNTKEYSINSLOT", slot)
                left = connection.roundtrip("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
            finally:
                connection.close()
            if not any(key.startswith(self._requests.tag(request.gate).encode()) for key in left):
                request.redirected_to, request.says_asking = reply.address, True
                return True
        return False

    def _load(self, connection: RedisConnection, request: RedisRequest) -> None:
        failed: ErrorReply | None = None
        try:
            connection.roundtrip("FUNCTION", "LOAD", library())
        except ErrorReply as error:
            failed = error
        self._requests.library_loaded(request, failed)

    def _calibrate(self, connection: RedisConnection) -> None:
        try:
            self._requests.calibrate(connection.roundtrip("TIME"))
        except ErrorReply:
            self._requests.calibrate(None)

    def close(self) -> None:
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()
