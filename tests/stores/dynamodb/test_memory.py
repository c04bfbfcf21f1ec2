"""A process that decides for ever on DynamoDB keeps nothing of a decision once its id is no longer remembered."""

from __future__ import annotations

import gc
import sys

import pytest

from headgate import Concurrency, Gate
from headgate.testing import FakeClock
from tests.support.stores import dynamodb

#: Ids that have run off are forgotten with every 256th command, so with every so many asks and releases.
ROUND = 128


@pytest.mark.slow
def test_a_decision_leaves_nothing_in_the_process_once_its_id_is_forgotten() -> None:
    clock = FakeClock()
    with dynamodb(clock) as store:
        gate = Gate("g", [Concurrency(5, name="slots", lease="1s")], store=store)

        def blocks_after(rounds: int) -> int:
            """The number of blocks of memory in use after so many rounds, at whose end ids are forgotten."""
            for _ in range(rounds * ROUND):
                gate.acquire(renew=False).release()
                clock.advance("1s")
            gc.collect()
            return sys.getallocatedblocks()

        rounds, grown, before = 6, [], blocks_after(3)
        # One object that each decision leaves would be as many blocks in every span; what else goes on in the process
        # (a thread's first error, a cache of the driver) takes its blocks once.
        while len(grown) < 4 and not (grown and min(grown) < rounds * ROUND / 2):
            after = blocks_after(rounds)
            grown.append(after - before)
            before = after
    assert min(grown) < rounds * ROUND / 2, grown
