"""The simulated fleet: Headgate and the other strategies on the reference scenarios, and S1's million, under many seeds."""

import os

from benchmarks.fleet import late, million, others, reference, slow, sweep
from benchmarks.measure import Table


def run(quick: bool) -> list[Table]:
    jobs = os.cpu_count() or 1
    seeds = 2 if quick else 50
    # The job of a million is minutes of one processor: not for a look.
    whole = [] if quick else [million()[0]]
    return [
        sweep("Fleet: adobe", list(reference()), seeds, jobs)[0],
        sweep("Fleet: adobe-late", list(late()), seeds, jobs)[0],
        sweep("Fleet: adobe-slow", list(slow()), seeds, jobs)[0],
        others(2 if quick else 10, jobs),
        *whole,
    ]
