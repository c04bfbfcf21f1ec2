"""What Headgate is tested with, for your tests as well.

`FakeClock` moves time by hand; `FakeUpstream` judges arrivals by books of its own; `LimitSuite`, `StoreSuite` and
`QueueSuite` are what every limit, every store and every queue must pass: subclass them in a test module and say how to make
yours; `UnreachableStore` is a store that is away. With pytest, the fixtures `headgate_clock` and `headgate_memory_store`
are there by themselves.
"""

from __future__ import annotations

from .clock import FakeClock
from .limit_suite import LimitSuite
from .queue_suite import QueueSuite
from .store_suite import StoreSuite
from .unreachable import UnreachableStore
from .upstream import FakeUpstream

__all__ = ["FakeClock", "FakeUpstream", "LimitSuite", "QueueSuite", "StoreSuite", "UnreachableStore"]
