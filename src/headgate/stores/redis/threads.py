"""Sending from threads, by connections that are kept between calls."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, monotonic_ns, sleep

from ...errors import StoreFormatError, StoreUnavailable
from ..remote.coalescing import Job
from .coalescer import NOT_YET as NOT_YET
from .coalescer import Lane
from .errors import Broken, Refused, Silent
from .requests import Call
from .script import library, tag
from .wire import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...kernel.commands import Command
    from .client import Address, Link
    from .requests import Calls

#: Idle connections that are kept for each server.
KEPT = 8


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
        link = self.ready(gate)
        return NOT_YET if link is None else self.reply_to(gate, command, link)

    def ready(self, gate: str) -> Link | None:
        """A connection that stands ready, for whoever gives it to `reply_to` or `keep`."""
        calls = self._calls
        if calls.timeless:
            return None
        address = calls.endpoint.start if not calls.endpoint.cluster else calls.slots.get(calls.slot(gate))
        try:
            return self._idle[address].pop()  # type: ignore[index]
        except LookupError:
            return None

    def reply_to(self, gate: str, command: Command, link: Link, sent: bool = False) -> Any:
        """The reply to one command that goes by a connection, or was sent by it a moment ago."""
        calls = self._calls
        commands = (command,)
        end = monotonic() + calls.endpoint.timeout
        try:
            raw = link.read() if sent else link.call(*calls.ask(gate, commands))
        except (Refused, Broken, Silent) as error:
            job = Job(commands)
            job.sent = True
            self.run(Call(gate, [job]), end, link, error)
            return job.result()[0]
        except BaseException:
            link.close()
            raise
        self.keep(link)
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
                self.keep(link)
                link = None
                if calls.take(call, raw):
                    return
                continue
            except Refused as refused:
                if link is not None and refused.kind not in ("loading", "readonly"):
                    self.keep(link)
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
        self.keep(link)
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

    def keep(self, link: Link) -> None:
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
