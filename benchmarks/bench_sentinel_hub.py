"""Fleets against a local Sentinel Hub: a guard that hands out delays, the design it grew from, the package, and backoff."""

from benchmarks.measure import Table
from benchmarks.sentinel_hub import tables


def run(quick: bool) -> list[Table]:
    return tables(quick)
