"""What tests of several parts need: servers, guards, workers, oracles. Imported as `tests.support.NAME`, one way only."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).parents[2]
