"""The public surface as a caller types it. Never run: `test_surface.py` has mypy and pyright read it.

The comment behind each `reveal_type` is the type that has to be revealed; a type that is lost becomes Any and fails.
"""

from __future__ import annotations

from typing import reveal_type

import headgate
from headgate import (
    Aimd,
    AsyncGate,
    Bucket,
    Concurrency,
    Denied,
    Gate,
    LeaseLost,
    Quota,
    StoreUnavailable,
    Window,
)
from headgate.events import Event, subscribe
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock, FakeUpstream

gate = Gate(
    "adobe",
    [
        Window(190, per="1m", slack="1s", name="rpm"),
        Bucket(10.5, per=60, burst=3, unit="pu", by="org"),
        Quota(500, per="month", zone="UTC"),
        Concurrency(150, lease="30s", adaptive=Aimd(start=8, minimum=2)),
    ],
    store="memory://",
    priorities={"live": 1.0, "batch": 0.8},
    on_store_error="closed",
)
reveal_type(gate)  # Gate

with gate.acquire(cost={"pu": 3.2}, key={"org": "acme"}, priority="live", timeout=300, holder="x", id="y") as permit:
    reveal_type(permit)  # Permit
    reveal_type(permit.id)  # str
    reveal_type(permit.waited)  # float
    reveal_type(permit.fence)  # int
    reveal_type(permit.lease_expires_at)  # float | None
    reveal_type(permit.lost)  # bool
    reveal_type(permit.report({"status": 200, "headers": {}}))  # Report
    reveal_type(permit.report(object()).retry_after)  # float | None
    reveal_type(permit.report(object()).permanent)  # bool
    reveal_type(permit.renew())  # float
    reveal_type(permit.confirm())  # None
    reveal_type(permit.settle({"pu": 2.9}))  # None
    reveal_type(permit.release("ok", retry_after=1.5))  # bool

reveal_type(gate.try_acquire())  # Permit | None
place = gate.reserve(cost={"pu": 3.2})
reveal_type(place)  # Place
reveal_type(place.delay)  # float
reveal_type(place.permit)  # Permit
reveal_type(place.cancel())  # None

usage = gate.usage(key={"org": "acme"})
reveal_type(usage)  # Usage
reveal_type(usage["rpm"])  # LimitUsage
reveal_type(usage["rpm"].available)  # float
reveal_type(usage.waiting)  # int
reveal_type(gate.holders())  # list[Holder]
reveal_type(gate.waiters())  # list[Waiter]
reveal_type(gate.overrides())  # list[Override]
reveal_type(gate.explain(cost=2))  # Explanation
reveal_type(gate.release("id", "ok"))  # bool
reveal_type(gate.renew("id"))  # float
reveal_type(gate.set_limit("rpm", 100))  # None
reveal_type(gate.pause("1m", "maintenance"))  # None
reveal_type(gate.policy.limits)  # tuple[Limit, ...]
reveal_type(gate.store.capabilities)  # Capabilities
reveal_type(gate.at_boundary())  # Gate
reveal_type(gate.as_async())  # AsyncGate


async def on_a_loop() -> None:
    remote = AsyncGate("adobe", [Window(190, per="1m")], store=MemoryStore(clock=FakeClock()))
    async with remote.acquire() as permit:
        reveal_type(permit)  # AsyncPermit
        reveal_type(await permit.report(object()))  # Report
        reveal_type(await permit.release())  # bool
    reveal_type(await remote.acquire())  # AsyncPermit
    reveal_type(await remote.try_acquire())  # AsyncPermit | None
    reveal_type(await remote.reserve())  # AsyncPlace
    reveal_type(await remote.usage())  # Usage
    reveal_type(await remote.holders())  # list[Holder]
    reveal_type(remote.at_boundary())  # AsyncGate


gates = headgate.load("headgate.toml")
reveal_type(gates["adobe"])  # Gate
reveal_type(gates.async_gate("adobe"))  # AsyncGate
reveal_type(headgate.__version__)  # str


def told(event: Event) -> None:
    reveal_type(event.kind)  # str


reveal_type(subscribe(told))  # () -> None

try:
    gate.acquire(timeout=0)
except Denied as denied:
    reveal_type(denied.retry_after)  # float | None
    reveal_type(denied.position)  # int | None
    reveal_type(denied.limit)  # str | None
except StoreUnavailable as away:
    reveal_type(away.decided)  # bool | None
except LeaseLost:
    pass


def org_of(org: str, *_: object) -> dict[str, str]:
    return {"org": org}


@gate.limited(key=org_of, cost={"pu": 1})
def decorated(org: str, pages: int) -> bytes:
    return b""


reveal_type(decorated)  # (org: str, pages: int) -> bytes
reveal_type(decorated("acme", 3))  # bytes

reveal_type(FakeUpstream(2, per="1s"))  # FakeUpstream
