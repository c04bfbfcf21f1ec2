"""Sending from threads: whoever has a gate's lock sends for all who wait for it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import monotonic, monotonic_ns, sleep

from ..errors import StoreFormatError, StoreUnavailable
from .redis_batches import Call
from .redis_errors import Broken, Refused, Silent
from .redis_script import library, tag
from .redis_wire import decode
from .remote import COMPANY, LARGEST_BATCH, Bell, Job, OutcomeUnknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..commands import Command
    from .redis_batches import Calls
    from .redis_client import Address, Link

#: Idle connections that are kept for each server.
KEPT = 8

#: No reply: it has to be asked for in another way.
NOT_YET = object()


class Threads:
    """The calls of a process's threads, and their connections."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._lanes: dict[str, Lane] = {}
        self._idle: dict[Address, list[Link]] = {}

    def lane(self, gate: str) -> Lane:
        return self._lanes.setdefault(gate, Lane(self, gate))

    # --- one call -------------------------------------------------------------------------------------------------

    def quick(self, gate: str, command: Command) -> Any:
        """The reply to one command by the connection that stands ready; whatever goes another way is left to `run`."""
        calls = self._calls
        if calls.timeless:
            return NOT_YET
        address = calls.endpoint.start if not calls.endpoint.cluster else calls.slots.get(calls.slot(gate))
        try:
            link = self._idle[address].pop()  # type: ignore[index]
        except LookupError:
            return NOT_YET
        commands = (command,)
        end = monotonic() + calls.endpoint.timeout
        try:
            raw = link.call(*calls.ask(gate, commands))
        except (Refused, Broken, Silent) as error:
            job = Job(commands)
            job.sent = True
            self.run(Call(gate, [job]), end, link, error)
            return job.result()[0]
        except BaseException:
            link.close()
            raise
        self._keep(link)
        if raw[0].__class__ is int:
            return calls.answered(gate, decode(commands, raw)).replies[0]
        job = Job(commands)  # it has to be told more, or is of another version
        call = Call(gate, [job])
        call.commands = commands
        if not calls.take(call, raw):
            self.run(call, end)
        return job.result()[0]

    def run(self, call: Call, end: float = 0.0, link: Link | None = None, failed: Exception | None = None) -> None:
        """Send a call until it is answered, or its time is over. Each of its jobs is done then.

        `failed` is what became of a first attempt by `link`, which had until `end` as well.
        """
        calls = self._calls
        end = end or monotonic() + calls.endpoint.timeout
        while call.jobs:
            error: Exception
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                link = None
                link = self._link(call, end)
                if calls.must_ask_time:
                    self._ask_time(link)
                if call.loading:
                    self._load(link, call)
                if call.asking:
                    link.call("ASKING")
                call.leaves()
                raw = link.call(*calls.words(call))
                self._keep(link)
                link = None
                if calls.take(call, raw):
                    return
                continue
            except Refused as refused:
                if link is not None and refused.kind not in ("loading", "readonly"):
                    self._keep(link)
                    link = None
                if refused.kind == "ask" and self._follow(call, refused, end):
                    continue
                error = refused
            except (Broken, Silent) as lost:
                error = lost
                if link is not None:
                    self._forget(link.address)
            finally:
                if link is not None:
                    link.close()
            try:
                pause = calls.after(call, error)
                if monotonic() + pause >= end:
                    raise calls.unavailable(error)
            except (StoreUnavailable, StoreFormatError) as failure:
                call.fail(failure)
                return
            if pause:
                sleep(pause)

    def run_all(self, several: list[Call]) -> None:
        """Calls of several gates: all are sent to a server before the first answer of it is read."""
        calls = self._calls
        end = monotonic() + calls.endpoint.timeout
        groups: dict[Address | None, list[Call]] = {}
        for call in several:
            groups.setdefault(None if calls.must_ask_time else calls.address(call), []).append(call)
        again = groups.pop(None, [])
        for group in groups.values():
            again += self._pipelined(group, end)
        for call in again:  # one by one, with all that can be done about each
            self.run(call)

    def _pipelined(self, group: list[Call], end: float) -> list[Call]:
        """Those of a group that have to go again."""
        again: list[Call] = []
        answered = 0
        try:
            link = self._link(group[0], end)
        except (Refused, Broken, Silent):
            return group
        try:
            for call in group:
                call.leaves()
                link.send(*self._calls.words(call))
            for call in group:
                try:
                    raw = link.read()
                    answered += 1
                    if not self._calls.take(call, raw):
                        again.append(call)
                except Refused:
                    answered += 1
                    again.append(call)
        except (Broken, Silent) as error:
            link.close()
            lost = group[answered:]
            for call in lost:
                self._calls.forget_unrepeatable(call, error)
                call.repeated = True
            return again + lost
        except BaseException:
            link.close()
            raise
        self._keep(link)
        return again

    # --- connections ----------------------------------------------------------------------------------------------

    def _link(self, call: Call, end: float) -> Link:
        address = self._calls.address(call)
        if address is None:
            self._ask_cluster(end)
            address = self._calls.address(call)
            if address is None:
                raise Refused("moving", "CLUSTERDOWN no master serves the slot of this gate")
        with suppress(LookupError):
            return self._idle[address].pop()
        return self._calls.endpoint.connect(address, end - monotonic())

    def _keep(self, link: Link) -> None:
        idle = self._idle.setdefault(link.address, [])
        if link.hurried or len(idle) >= KEPT:
            link.close()
        else:
            idle.append(link)

    def _forget(self, address: Address) -> None:
        """One connection to a server is gone, so the others are likely to be."""
        for link in self._idle.pop(address, ()):
            link.close()

    def ask(self, *words: Any, address: Address | None = None) -> Any:
        """Any command, for looking around. Raises Refused, Broken or Silent."""
        endpoint = self._calls.endpoint
        link = endpoint.connect(address or endpoint.start, endpoint.timeout)
        try:
            return link.call(*words)
        finally:
            link.close()

    def _ask_cluster(self, end: float) -> None:
        """Learn who serves which slot, from whoever answers."""
        error: Exception | None = None
        for address in self._calls.masters():
            try:
                link = self._calls.endpoint.connect(address, end - monotonic())
                try:
                    self._calls.learn(address, link.call("CLUSTER", "SLOTS"))
                finally:
                    link.close()
                return
            except (Refused, Broken, Silent) as failure:
                error = failure
        assert error is not None
        raise error

    def _follow(self, call: Call, refused: Refused, end: float) -> bool:
        """The slot is on its way to another master: go there if all keys of the gate have arrived."""
        source, slot = self._calls.address(call), self._calls.slot(call.gate)
        with suppress(Refused, Broken, Silent):
            link = self._calls.endpoint.connect(source or self._calls.endpoint.start, end - monotonic())
            try:
                count = link.call("CLUSTER", "COUNTKEYSINSLOT", slot)
                left = link.call("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
            finally:
                link.close()
            if not any(key.startswith(tag(call.gate).encode()) for key in left):
                call.elsewhere, call.asking = refused.address, True
                return True
        return False

    def _load(self, link: Link, call: Call) -> None:
        refused: Refused | None = None
        try:
            link.call("FUNCTION", "LOAD", library())
        except Refused as error:
            refused = error
        self._calls.after_loading(call, refused)

    def _ask_time(self, link: Link) -> None:
        before = monotonic_ns()
        try:
            self._calls.set_time(link.call("TIME"), before)
        except Refused:
            self._calls.set_time(None, before)

    def close(self) -> None:
        idle, self._idle = self._idle, {}
        for links in idle.values():
            for link in links:
                link.close()


class Lane:
    """The jobs of one gate, and the lock of whoever sends them.

    A thread that finds the lock taken waits for its own bell, not for the lock: it is rung when its job is done, or when
    it is its turn to send. It looks by itself as well now and then, since whoever should ring may have been interrupted.
    """

    __slots__ = ("_company", "_gate", "_lock", "_queue", "_threads")

    def __init__(self, threads: Threads, gate: str) -> None:
        self._threads = threads
        self._gate = gate
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        #: Above 0 while threads ask together.
        self._company = 0

    def decide(self, command: Command) -> Any:
        """The reply to one command. Where nobody else asks, that is all there is to do."""
        queue, lock = self._queue, self._lock
        if not queue and not self._company and not lock.locked():
            reply = NOT_YET
            try:
                with lock:
                    if not queue:
                        reply = self._threads.quick(self._gate, command)
            except StoreUnavailable as error:
                self._tell_others(error)
                raise
            finally:
                if queue:
                    self._call_next()
            if reply is not NOT_YET:
                return reply
        job = Job((command,))
        self.run(job)
        return job.result()[0]

    def run(self, job: Job) -> None:
        """Have a job done, by this thread or by one that is sending anyway."""
        queue, lock = self._queue, self._lock
        queue.append(job)
        try:
            while not job.done:
                if not lock.locked():
                    with lock:  # not `acquire`: Ctrl-C can come between that and its `try`
                        if not job.done:
                            self._lead(job)
                    if queue:
                        self._call_next()
                elif job.bell is None:
                    job.bell = Bell()
                else:
                    job.bell.wait()
        except BaseException:
            with suppress(ValueError):
                queue.remove(job)
            self._call_next()
            raise

    def _lead(self, job: Job) -> None:
        queue = self._queue
        if job not in queue:  # whoever had taken it was interrupted
            if job.sent and not job.repeatable:
                job.fail(OutcomeUnknown("whoever sent it was interrupted; whether it was done is not known"))
                return
            queue.appendleft(job)
        if self._company:
            sleep(0)  # others have just been told, and are about to ask again
        jobs = self._batch()
        self._company = COMPANY if len(jobs) > 1 else max(0, self._company - 1)
        self._threads.run(Call(self._gate, jobs))
        if isinstance(error := jobs[0].error, StoreUnavailable):
            self._tell_others(error)

    def _tell_others(self, error: StoreUnavailable) -> None:
        """Those who came meanwhile would only find the same, as long again."""
        if type(error) is StoreUnavailable:
            Call(self._gate, self._batch()).fail(error)

    def _call_next(self) -> None:
        with suppress(IndexError):
            bell = self._queue[0].bell
            if bell is not None:
                bell.ring()

    def _batch(self) -> list[Job]:
        queue = self._queue
        jobs: list[Job] = []
        count = 0
        while queue and count < LARGEST_BATCH:
            job = queue.popleft()
            jobs.append(job)
            count += len(job.commands)
        return jobs
