"""Captured routings: what a layer cannot have is refused, and runs are told apart by them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from cases import FP8_RECORDING, tuned

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.gpu import load_routing
from tuner.families.fused_moe.problem import FusedMoe
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.measure.messages import RoutingFile, find_routing_file
from tuner.measure.recording import Replay
from tuner.measure.workbench import Workbench
from tuner.problems.dtypes import Dtype
from tuner.problems.results import MeasureKind
from tuner.store.results import ResultStore
from tuner.tuning import run
from tuner.tuning.request import Effort, Request, Source, parse_source, prepare
from tuner.tuning.run import SerialBench, open_source

LAYER = FusedMoe(E=8, N=512, K=1024, top_k=2, dtype=Dtype.BFLOAT16)
EXPECTED = r"expected \(tokens, 2\) expert ids from 0 to 7"


@cache
def recorded() -> Recording:
    return read_recording(FP8_RECORDING)


def saved(tmp_path: Path, value: object, name: str = "routing.pt") -> Path:
    path = tmp_path / name
    torch.save(value, path)
    return path


# What a file may hold


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_a_captured_routing_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 7], [3, 1], [7, 2]], dtype=dtype)
    read = load_routing(find_routing_file(saved(tmp_path, ids)), LAYER)
    assert read.dtype is torch.int32
    assert read.tolist() == ids.tolist()


def test_a_capture_of_a_rank_has_slots_of_experts_elsewhere(tmp_path: Path) -> None:
    ids = torch.tensor([[0, -1], [-1, -1], [7, 2]], dtype=torch.int32)
    file = find_routing_file(saved(tmp_path, ids))
    assert load_routing(file, replace(LAYER, ep=4)).tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.zeros(4, 3, dtype=torch.int32), rf"shape \(4, 3\): {EXPECTED}"),
        (torch.zeros(8, dtype=torch.int32), rf"shape \(8,\): {EXPECTED}"),
        (torch.zeros(1, 4, 2, dtype=torch.int32), rf"shape \(1, 4, 2\): {EXPECTED}"),
        (torch.zeros(0, 2, dtype=torch.int32), rf"shape \(0, 2\), no token: {EXPECTED}"),
        (torch.tensor([[0, 8]]), f"the expert id 8: {EXPECTED}"),
        (torch.tensor([[0, 1 << 40]]), f"the expert id 1099511627776: {EXPECTED}"),
        (torch.tensor([[0, -2]]), f"the expert id -2: {EXPECTED}"),
        (torch.tensor([[0, -1]]), f"holds -1, .*tune with --ep, .*; {EXPECTED}"),
        (torch.zeros(4, 2), f"a torch.float32 tensor .*, not .*whole numbers: {EXPECTED}"),
        (torch.zeros(4, 2, dtype=torch.bool), "a torch.bool tensor .*, not a plain tensor"),
        (torch.zeros(4, 2, dtype=torch.int32).to_sparse(), "not a plain tensor"),
        (torch.zeros(4, 2, dtype=torch.int32, device="meta"), "not a plain tensor"),
        ({"ids": torch.zeros(4, 2)}, f"a dict, not a tensor: {EXPECTED}"),
    ],
)
def test_what_the_layer_cannot_have_is_refused(tmp_path: Path, value: object, says: str) -> None:
    path = saved(tmp_path, value)
    with pytest.raises(BadInput, match=says) as refused:
        load_routing(find_routing_file(path), LAYER)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


class Touches:
    """A pickle that makes a file when it is loaded as code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_is_not_loaded(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickle.dumps(Touches(trap)))
    for path in (saved(tmp_path, Touches(trap)), plain):
        with pytest.raises(BadInput, match="not a tensor file"):
            load_routing(find_routing_file(path), LAYER)
    assert not trap.exists()


def test_a_file_that_is_no_tensor_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.pt"
    path.write_text("0 1\n")
    with pytest.raises(BadInput, match=r"notes\.pt: not a tensor file"):
        load_routing(find_routing_file(path), LAYER)
    with pytest.raises(BadInput, match=r"none\.pt cannot be read: No such file"):
        find_routing_file(tmp_path / "none.pt")


def test_a_file_that_changes_during_a_run_is_refused(tmp_path: Path) -> None:
    file = find_routing_file(saved(tmp_path, torch.tensor([[0, 1]])))
    saved(tmp_path, torch.tensor([[0, 2]]))
    with pytest.raises(BadInput, match="has changed since the run began"):
        load_routing(file, LAYER)


@pytest.mark.parametrize("measure", ["predict", "replay:x.csv.gz"])
def test_routings_are_for_a_gpu_alone(measure: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--routing is for --measure gpu"):
        parse_source(measure, routing=tmp_path / "routing.pt")


# Which run it belongs to


class RecordedGpu(SerialBench):
    """Stands for a GPU bench: answers from a recording."""

    environment = {"torch": "2", "cuda": "13", "driver": "1"}  # noqa: RUF012 (as a GPU's is)
    backends = ()  # none is installed

    def __init__(self) -> None:
        replay = Replay(recorded(), find_device("H200"))
        super().__init__(replay, replay)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of a GPU starts: the recorded times need none."""
    monkeypatch.setattr(Workbench, "start", lambda *_: None)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, no_child: None) -> list[RoutingFile | None]:
    """The routings that benches were opened with."""
    opened: list[RoutingFile | None] = []

    def open_bench(*args: object, routing: RoutingFile | None, **others: object) -> RecordedGpu:
        opened.append(routing)
        return RecordedGpu()

    monkeypatch.setattr(run, "open_gpu_bench", open_bench)
    return opened


def request_of(effort: Effort, routing: Path | None = None) -> Request:
    return Request(
        problem=recorded().problem,
        device=find_device("H200"),
        engine=find_engine("sglang==0.5.16"),
        source=Source(MeasureKind.GPU, routing=routing),
        selection=MoeSelection((2,)),
        effort=effort,
        wide=False,
    )


def measured(store: ResultStore, routing: Path | None) -> int:
    return tuned(request_of(Effort.QUICK, routing), store).totals.measurements


@pytest.mark.parametrize("effort", Effort)
def test_only_exhaustive_runs_time_every_candidate_with_all_routings(
    monkeypatch: pytest.MonkeyPatch, no_child: None, effort: Effort
) -> None:
    asked: list[bool] = []

    def open_bench(*args: object, thorough: bool, **others: object) -> RecordedGpu:
        asked.append(thorough)
        return RecordedGpu()

    monkeypatch.setattr(run, "open_gpu_bench", open_bench)
    request = request_of(effort)
    with Workbench() as workbench:
        times = open_source(request, workbench)
        times.bench(prepare(request))
        assert times.environment()["torch"]
    assert asked == [effort is Effort.EXHAUSTIVE]


def test_a_run_with_a_routing_is_not_answered_from_trials_of_another(
    store: ResultStore, given: list[RoutingFile | None], tmp_path: Path
) -> None:
    one, two = (saved(tmp_path, torch.tensor([[i]]), f"{i}.pt") for i in (1, 2))
    assert measured(store, None) > 0
    assert measured(store, None) == 0
    assert measured(store, one) > 0
    assert measured(store, one) == 0
    assert measured(store, two) > 0
    copy = tmp_path / "copy.pt"
    copy.write_bytes(one.read_bytes())
    assert measured(store, copy) == 0  # what a file holds counts, not its name
    assert [file and file.path for file in given] == [None, None, one, one, two, copy]
