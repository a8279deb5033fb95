"""How many of the engines' own kernels can be lifted."""

import sys
from pathlib import Path

import pytest
from tiers import only

from tuner.kernels.lift import jitted_functions

SURVEYED = [
    ("vllm", "0.10.2", 85, 92),
    ("vllm", "0.33.0", 810, 853),
    ("sglang", "0.5.23", 1010, 1022),
]


@pytest.mark.parametrize(("engine", "version", "least", "at_most"), only(SURVEYED[:1], SURVEYED))
def test_nearly_all_kernels_lift(engine, version, least, at_most):
    root = Path(sys.prefix, "share", "tuner", "engines", f"{engine}-{version}", engine)
    assert root.is_dir(), f"`tuner engines add {engine}=={version}` adds it"
    found = list(jitted_functions(root, f"{engine} {version}"))
    assert len(found) == at_most
    refused = {f"{one.file}:{one.name}": one.refusal for one in found if one.refusal}
    assert len(found) - len(refused) >= least, refused
