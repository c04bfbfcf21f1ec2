"""A process that goes by a clock of the test's: for what a permit knows of its own age, and for sleeping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate.gate import aio, base, stamping, sync
from headgate.testing import FakeClock


@contextmanager
def time_of(clock: FakeClock) -> Iterator[None]:
    """Have this process go by the clock: its steady clock is that, and sleeping in a thread moves it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (aio, base, stamping, sync):
            patch.setattr(module, "steady", clock)
        patch.setattr(sync, "sleep", lambda seconds: clock.advance(microseconds=round(seconds * 1_000_000)))
        yield
