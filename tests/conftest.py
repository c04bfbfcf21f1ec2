"""How Hypothesis runs: by the clock of the machine nothing is judged; `HYPOTHESIS_PROFILE=mutants` only wants a failure."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "mutants", parent=settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
