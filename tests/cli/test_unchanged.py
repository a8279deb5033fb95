"""What users get from the command line is what was recorded, byte for byte.

To record anew on purpose: `python tests/cli/unchanged_cases.py --record [CASE ...]`.
"""

import difflib
import importlib.metadata
import sys
from itertools import islice
from pathlib import Path

import pytest
from tiers import only
from unchanged_cases import CASES, ENGINE, RECORDS, TRITON, outputs, recorded

from tuner.engines.engine import find_triton

ENGINE_FOLDER = Path(sys.prefix, "share", "tuner", "engines", ENGINE.replace("==", "-"))
OLD_TRITON = "3.1.0"  # what sglang 0.4.4 runs
SHOWN_LINES = 60  # of a difference
# The cases that compile few kernels, or none.
EACH_COMMIT = (
    *("tables_of_names", "moe_replayed", "attention_replayed"),
    *("existing_store", "bundled", "deployed", "submitted"),
)


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


@pytest.mark.skipif(_triton() != TRITON, reason=f"recorded with triton {TRITON}")
@pytest.mark.skipif(not ENGINE_FOLDER.is_dir(), reason=f"needs {ENGINE}: make engines")
@pytest.mark.parametrize("case", only(EACH_COMMIT, CASES))
def test_outputs_are_as_recorded(case, tmp_path, compile_cache):
    if case == "checked" and find_triton(OLD_TRITON) is None:
        pytest.skip(f"no triton-{OLD_TRITON} beside the engines: `make test` unpacks it")
    before, now = recorded(case), outputs(case, tmp_path, compile_cache)
    if before != now:
        pytest.fail(f"{case} gives other outputs:\n{_difference(before, now)}", pytrace=False)


def test_every_record_has_its_case():
    names = {path.name.partition(".")[0] for path in RECORDS.glob("*.txt.gz")}
    assert names == set(CASES)


def _difference(before: str, now: str) -> str:
    lines = [text.splitlines(keepends=True) for text in (before, now)]
    return "".join(islice(difflib.unified_diff(*lines, "recorded", "now", n=2), SHOWN_LINES))
