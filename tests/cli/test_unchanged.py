"""What users get from the command line is what was recorded, byte for byte.

To record anew on purpose: `python tests/cli/test_unchanged.py --record [CASE ...]`.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import sys
import tempfile
from itertools import islice
from pathlib import Path

import pytest
from unchanged_cases import CASES, ENGINE, RECORDS, TRITON, make_store, outputs, record, recorded

from tuner.engines.triton_release import find_triton

ENGINE_FOLDER = Path(sys.prefix, "share", "tuner", "engines", ENGINE.replace("==", "-"))
OLD_TRITON = "3.1.0"  # what sglang 0.4.4 runs
SHOWN_LINES = 60  # of a difference


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


@pytest.mark.skipif(_triton() != TRITON, reason=f"recorded with triton {TRITON}")
@pytest.mark.skipif(not ENGINE_FOLDER.is_dir(), reason=f"needs {ENGINE}: make engines")
@pytest.mark.parametrize("case", CASES)
def test_outputs_are_as_recorded(case: str, tmp_path: Path) -> None:
    if case == "checked" and find_triton(OLD_TRITON) is None:
        pytest.skip(f"no triton-{OLD_TRITON} beside the engines: `make test` unpacks it")
    before, now = recorded(case), outputs(case, tmp_path)
    if before != now:
        pytest.fail(f"{case} gives other outputs:\n{_difference(before, now)}", pytrace=False)


def test_every_record_has_its_case() -> None:
    names = {path.name.partition(".")[0] for path in RECORDS.glob("*.txt.gz")}
    assert names == set(CASES)


def _difference(before: str, now: str) -> str:
    lines = [text.splitlines(keepends=True) for text in (before, now)]
    return "".join(islice(difflib.unified_diff(*lines, "recorded", "now", n=2), SHOWN_LINES))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        for name in sys.argv[2:] or CASES:
            with tempfile.TemporaryDirectory() as folder:
                record(name, Path(folder).resolve())
    elif sys.argv[1:] == ["--make-store"]:
        with tempfile.TemporaryDirectory() as folder:
            make_store(Path(folder))
    else:
        sys.exit(__doc__)
