"""How Hypothesis draws. Importing it takes half a second: only files that use it pay for it."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_EXAMPLES = {"each commit": 25, "night": 100}

for _name, _examples in _EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,  # a busy machine is no failure
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        # Continuous integration judges a change, not the luck of a draw; by hand, each run draws
        # anew.
        derandomize=bool(os.environ.get("CI")),
    )


def draw_for(markers: str) -> None:
    """Draw as often as tests with these markers should: few examples where slow ones are left."""
    settings.load_profile("each commit" if "not slow" in markers else "night")


def times(factor: float) -> settings:
    """Draw a test's examples more often than usual, or less often; a decorator."""
    return settings(max_examples=round(factor * settings().max_examples))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
