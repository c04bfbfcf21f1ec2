"""The bugs that `make mutants` plants: that takes an hour, so here only that each still finds its place."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, Mutant, misses


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_bug_to_be_planted_has_its_place_in_the_source(mutant: Mutant) -> None:
    assert misses(mutant) is None
    assert mutant.becomes != mutant.was
