"""Tables and reports that commands print off a terminal fit 80 columns.

A path is one word that cannot be folded, and the temporary folders' paths differ in length. So a
line is measured with a short name in the place of such a folder. A line that holds one file's name
alone is left out, and a line that quotes a node's own output.
"""

import os
import re
import sys
from pathlib import Path

import pytest
from commands import run
from unchanged_cases import ATTENTION_RECORDING, CLUSTER, ENGINE, EXTEND, LAYER, RECORDING

from tuner.engines.engine import find_triton

COLUMNS = 80
BENCH = CLUSTER / "bench" / "l40s-32gpu-before-bench_serving.txt"
LEFT_OUT = re.compile(r"\S*/.*\.json|\S*/\S*| *\| .*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("widths")


@pytest.fixture
def tuner(folder, compile_cache):
    own = {k: v for k, v in os.environ.items() if k != "COLUMNS" and not k.startswith("TUNER_")}
    env = {
        **own,
        "TUNER_DATABASE_URL": f"sqlite:///{folder / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(compile_cache),
    }

    def tuner(*words: object, code: int = 0) -> str:
        return run(*words, env=env, cwd=folder, code=code).stdout

    return tuner


def too_wide(text: str, folder: Path) -> list[str]:
    for place in (folder, Path(sys.prefix), CLUSTER.parent):
        text = text.replace(str(place), "/x")
    lines = [line for line in text.splitlines() if not LEFT_OUT.fullmatch(line)]
    return [line for line in lines if len(line) > COLUMNS]


REPLAY = ("tune", LAYER, "--device", "H200", "--measure", f"replay:{RECORDING}")
REPLAY_ATTENTION = (
    *("tune", EXTEND, "--device", "L40S"),
    *("--measure", f"replay:{ATTENTION_RECORDING}"),
)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            ("list", "devices"),
            0,
        ),
        (
            ("list", "models"),
            0,
        ),
        (("list", "engines"), 0),
        ((*REPLAY_ATTENTION, "--engine", ENGINE), 0),
        (("jobs",), 0),
        (
            ("nightly", "coverage"),
            0,
        ),
        (("bench-report", BENCH), 0),
        (("preflight", f"--node=l40s-01={CLUSTER / 'l40s-miswired'}"), 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_a_command_prints_fits(tuner, words, code, folder):
    text = tuner(*words, code=code)
    assert too_wide(text, folder) == []


def test_a_run_and_the_export_of_what_it_found_fit(tuner, folder):
    few = ("--engine", ENGINE, "--batch-sizes", "2,16", "--effort", "quick")
    assert too_wide(tuner(*REPLAY, *few), folder) == []
    assert too_wide(tuner("export", "--device", "H200", "--engine", ENGINE), folder) == []


@pytest.mark.slow  # the same table is that of a check of GEMMs
@pytest.mark.skipif(find_triton("3.1.0") is None, reason="no triton-3.1.0 beside the engines")
def test_a_check_of_attention_fits(tuner, folder):
    model = ("check", "--family", "attention", "deepseek-r1", "--tp", "8", "--device", "L40S")
    text = tuner(*model, "--engine", "sglang==0.4.4", code=1)
    assert "1 would crash" in text
    assert too_wide(text, folder) == []


def test_tune_shows_the_engines_time_the_tuned_one_and_the_gain(tuner):
    sizes = ("--engine", ENGINE, "--batch-sizes", "2,16", "--effort", "quick")
    lines = tuner(*REPLAY, *sizes).splitlines()
    assert re.search(r"(default|shipped|engine) +us +tuned +us +gain$", " ".join(lines[0].split()))
    closing = [line for line in lines if "geometric mean of 2 sizes" in line]
    assert len(closing) == 1
    assert re.match(r"\d+\.\d\dx as fast", closing[0])
