"""The list of the shelf's problems, going on where a call stopped, and runs as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import load_script
from cases import FP8, FP8_RECORDING, H200, ROOT, tuned

from benchmarks.shelf_list import wanted_problems
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.results import MeasureKind
from tuner.store.exchange import ResultExchange
from tuner.store.result_files import RunResult, checked, read_result
from tuner.tuning.request import Request, Source

ENGINE = find_engine("sglang==0.5.16")
REQUEST = Request(
    problem=FP8,
    device=H200,
    engine=ENGINE,
    source=Source(MeasureKind.REPLAY, FP8_RECORDING),
    selection=MoeSelection((16, 128)),
)


@pytest.mark.parametrize("spec", ["sglang==0.5.16", "sglang==0.5.23"])
def test_a_list_has_a_hundred_problems_and_each_file_once(spec: str) -> None:
    engine, card = find_engine(spec), find_device("H100")
    wanted = wanted_problems(engine, card)
    names = [moe_engine(engine).file_name(one.problem, card, Gemm.UP) for one in wanted]
    assert len(wanted) >= 100
    assert len(set(names)) == len(wanted)
    assert wanted[0].models[0].startswith("deepseek-r1 ")


def test_a_list_lacks_what_servers_run_without_triton_and_what_does_not_fit() -> None:
    models = " ".join(
        model for one in wanted_problems(ENGINE, find_device("H100")) for model in one.models
    )
    assert "kimi-k2.5" not in models  # its int4 experts run by Marlin
    assert "mixtral-8x22b tp 1" not in models  # 282 GB
    assert "mixtral-8x7b tp 8" in models
    assert "deepseek-r1 tp 16" in models  # beside the cache, one node of H100s has no room


def result(store: ResultExchange) -> RunResult:
    environment = tuned(REQUEST, store).environment
    (found,) = store.results(store.winners_in(FP8, environment))
    return found


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    shelf, wanted = load_script("shelf.py"), wanted_problems(ENGINE, H200)
    with ResultExchange.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        args = H200, "sglang", "0.5.16", MeasureKind.GPU
        assert shelf._missing(store, wanted, *args) == wanted
        tuned(REQUEST, store)
        left = shelf._missing(store, wanted, *args)
    assert [one.problem for one in wanted if one not in left] == [FP8]


@pytest.mark.parametrize("limit_s", [0, 0.3])  # the processes start for longer than that
def test_the_end_of_its_time_is_no_traceback(tmp_path: Path, limit_s: float) -> None:
    words = ["--engine", "sglang==0.5.16", "--device", "H100", "--measure", "predict"]
    words += ["--first", "2", "--limit-s", str(limit_s)]
    command = [sys.executable, "-m", "benchmarks.shelf", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 problems measured, 2 left" in done.stdout


def test_a_run_goes_to_another_store_as_json(tmp_path: Path) -> None:
    with ResultExchange.open(f"sqlite:///{tmp_path / 'one.db'}") as store:
        sent = result(store)
        here = store.winners(device=H200.name, engine="sglang")
    assert len(sent.entries) > 4  # those of all sizes that a file holds
    received = read_result(json.loads(json.dumps(sent.as_json())))
    assert received == sent
    with ResultExchange.open(f"sqlite:///{tmp_path / 'two.db'}") as store:
        assert store.add(received) == len(sent.entries)
        there = store.winners(device=H200.name, engine="sglang")
        assert [one.entry for one in there] == [one.entry for one in here]
        assert [one.environment for one in there] == [one.environment for one in here]
        assert store.add(received) == 0


def test_own_entries_stay(tmp_path: Path) -> None:
    with ResultExchange.open(f"sqlite:///{tmp_path / 'tuner.db'}") as store:
        own = result(store)
        slower = [replace(one, median_us=1e6) for one in own.entries]
        other = replace(own, key=replace(own.key, seed=7), entries=tuple(slower))
        assert store.add(other) == 0
        found = store.winners_in(FP8, own.key.environment)
        assert [one.entry for one in found] == list(own.entries)


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON of a result."""
    with ResultExchange.open(f"sqlite:///{tmp_path_factory.mktemp('one')}/tuner.db") as store:
        return result(store).as_json()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"problem": "fused_moe:E=1"},
        {"environment": {}},
        {"entries": [{}]},
        {"totals": None},
        {"published_at": "yesterday"},
        {"measure": "guess"},
        {"points": [[1, "sideways"]]},
        {"points": [["1", "up"]]},
        {"points": [[-1, "up"]]},
        {"seed": 10**40},
        {"effort": 3},
        {"space": None},
        {"totals": {"wall_s": "1"}},
        {"totals": {"extra": {"gpu_s": float("nan")}}},
    ],
)
def test_what_is_no_result_is_refused(values: dict[str, Any], change: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        checked(read_result({**values, **change}))


@pytest.mark.parametrize(
    "change",
    [
        *({"median_us": value} for value in ("1", True, [1], -1.0, float("inf"), 10**400)),
        {"reason": 1},
        {"batch_size": 10**30},
        {"without_us": ["default"]},
        {"config": {"num_warps": float("inf")}},
        *(
            {"incumbents": {"default": {"config": {}, "status": "ok", "backend": "triton", **one}}}
            for one in ({"median_us": "1"}, {"median_us": float("nan")}, {"backend": ["triton"]})
        ),
    ],
)
def test_an_entry_with_another_type_than_declared_is_refused(
    values: dict[str, Any], change: dict[str, object]
) -> None:
    assert checked(read_result(values))
    first, *others = values["entries"]
    with pytest.raises(BadInput, match="cannot be read"):
        checked(read_result({**values, "entries": [{**first, **change}, *others]}))
