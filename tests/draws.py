"""How Hypothesis draws. Importing it takes half a second: only files that use it pay for it."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tuner",
    deadline=None,  # a busy machine is no failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    # Continuous integration judges a change, not the luck of a draw; by hand, each run draws anew.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("tuner")
