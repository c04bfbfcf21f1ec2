"""How many examples a generated test tries."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: Of the examples that a test asks for, one in so many is tried: `make fast` is for the inner loop.
FEWER = 5 if os.environ.get("HYPOTHESIS_PROFILE") == "fast" else 1


def generated(examples: int) -> settings:
    """Settings for a test that tries so many examples. The profile says where failing ones are kept (conftest.py)."""
    return settings(max_examples=max(1, examples // FEWER), deadline=None, suppress_health_check=list(HealthCheck))
