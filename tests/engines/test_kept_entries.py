"""A prediction passes over what the engine ships for a card, and keeps what its makers measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import INT8, L40S, tuned

from tuner.bindings.sglang.fused_moe.files import SGLangFusedMoe
from tuner.compile import KernelCompiler
from tuner.compile.farm import Farm
from tuner.devices.table import Device, find_device
from tuner.engines.engine import find_engine
from tuner.export.choice import choose
from tuner.export.export import export_device
from tuner.export.plan import FoundFile, plan_model
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.fused_moe import tuning
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point, Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Incumbent,
    MeasureKind,
    Measurement,
    RunKey,
    Status,
    Totals,
)
from tuner.store.results import ResultStore
from tuner.tuning.report import RunReport
from tuner.tuning.request import Effort, KnownBefore, Request, Source, prepare
from tuner.tuning.seeds import KEPT

ENGINE = find_engine("sglang==0.5.16")
H100, H200 = find_device("H100"), find_device("H200")
PREDICT = Source(MeasureKind.PREDICT)
# sglang 0.5.16 ships all sizes of MiniMax-M2 on an H100, for Triton 3.5.1, which its servers with
# Triton 3.6.0 read; and sizes up to 1,024 of DeepSeek-R1 on an H200.
MINIMAX = parse_problem("fused_moe:E=256,N=384,K=3072,top_k=8,dtype=fp8_w8a8,block_shape=128x128")
R1 = parse_problem("fused_moe:E=257,N=256,K=7168,top_k=9,dtype=fp8_w8a8,block_shape=128x128")
GEMM = parse_problem("block_gemm:N=7168,K=256,dtype=fp8_w8a8,block=128x128")


def asked(problem: Problem, device: Device, source: Source = PREDICT, **more: object) -> Request:
    return Request(problem, device, ENGINE, source, **more)  # type: ignore[arg-type]


@pytest.fixture
def no_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(farm: Farm, jobs: Iterable[object]) -> None:
        assert not [*jobs], "a kernel is compiled"

    monkeypatch.setattr(Farm, "submit", refuse)


@pytest.mark.usefixtures("no_compiles")
@pytest.mark.parametrize(("problem", "device"), [(MINIMAX, H100), (GEMM, H200)])
def test_where_the_engine_ships_a_file_nothing_is_tried(
    problem: Problem, device: Device, store: ResultStore, tmp_path: Path
) -> None:
    request = asked(problem, device)
    report = tuned(request, store)
    assert report.totals.configs_compiled == report.totals.measurements == 0
    assert "ships a file for NVIDIA_H" in report.as_text()
    assert "only --measure gpu can replace them" in " ".join(report.as_text().split())
    assert {entry.point for entry in report.entries} == set(prepare(request).points)
    for entry in report.entries:
        assert entry.config == entry.incumbents["shipped"].config
        assert (entry.status, entry.reason) == (Status.INCUMBENT, KEPT)
        assert entry.median_us is None
    # The store is whole: nothing is exported, and what a server finds is still the engine's file.
    winners = store.winners(device=device.name, engine="sglang", engine_version="0.5.16")
    assert {winner.entry.point for winner in winners} == set(prepare(request).points)
    assert choose(winners, device, ENGINE, tmp_path, allow_predicted=False).winners == []
    (planned,) = plan_model([problem], ENGINE, device, {}, winners, lambda _: None).problems
    assert (planned.file, planned.gain) == (FoundFile.SHIPPED, None)


def test_it_is_predicted_where_that_is_asked_for_and_never_passed_over_on_a_gpu() -> None:
    assert len(prepare(asked(MINIMAX, H100)).kept) == 36
    for other in (
        asked(MINIMAX, H100, effort=Effort.EXHAUSTIVE),
        asked(MINIMAX, H100, Source(MeasureKind.GPU)),
        asked(MINIMAX, H200),  # no file
        # What the store has for the other gemm may have another BLOCK_SIZE_M.
        asked(MINIMAX, H100, selection=MoeSelection((1,), (Gemm.UP,))),
        asked(GEMM, H200, effort=Effort.EXHAUSTIVE),
        asked(GEMM, L40S, selection=GemmSelection((16,))),
    ):
        prepared = prepare(other)
        assert not prepared.kept
        assert set(prepared.goal(KnownBefore()).requested) == set(prepared.points)


class FitsAll(KernelCompiler):
    """Binds as ever, and compiles each kernel at once, which then fits."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked: list[Candidate] = []

    def submit(self, candidates: Iterable[Candidate]) -> None:
        for candidate in candidates:
            self._kernels(candidate)
            self._asked.append(candidate)

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        asked, self._asked = self._asked, []
        return [(one, Compiled(Status.OK, 40_000, 100, 0)) for one in asked]


def test_only_sizes_that_are_not_shipped_are_predicted(
    store: ResultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.tuning.run.KernelCompiler", FitsAll)
    request = asked(R1, H200, selection=MoeSelection((64, 4096)), effort=Effort.QUICK)
    report = tuned(request, store)
    statuses = {e.point.batch_size: (e.status, e.reason == KEPT) for e in report.entries}
    assert statuses == {64: (Status.INCUMBENT, True), 4096: (Status.PREDICTED, False)}
    assert f"2 of 4: {KEPT}" in report.as_text()
    winners = store.winners(device=H200.name, engine="sglang")
    done = export_device(winners, H200, ENGINE, tmp_path / "out", allow_predicted=True)
    sizes = prepare(asked(R1, H200)).points
    for file in done.files:  # each file is whole
        assert {*file.statuses} >= {point.batch_size for point in sizes}
        assert file.statuses[64] is Status.INCUMBENT


def test_what_the_makers_measured_under_an_older_name_is_kept_where_it_can_run() -> None:
    prepared = prepare(asked(INT8, L40S))
    assert not prepared.kept  # servers do not read that file
    goal, strategy = prepared.goal(KnownBefore()), prepared.strategy(KnownBefore())
    assert set(goal.trusted) == set(prepared.points)
    first = goal.incumbent_candidates()
    assert sum(prepared.tries.values()) <= len(first) <= 2 * len(prepared.points)
    lacking = Point(64, Gemm.DOWN)
    assert strategy.ask() == []
    for candidate in first:
        fails = candidate.point == lacking and candidate.config == goal.trusted[lacking]
        status = Status.OUT_OF_RESOURCES if fails else Status.PREDICTED
        strategy.tell(candidate, Measurement(status, None if fails else 1.0))
    found = strategy.ask()
    assert {one.point for one in found} == {Point(64, gemm) for gemm in Gemm}
    assert strategy.ask() == []


@pytest.mark.parametrize("source", [PREDICT, Source(MeasureKind.GPU)])
def test_such_a_file_is_named_and_tried_whatever_the_source(source: Source) -> None:
    prepared = prepare(asked(INT8, L40S, source))
    (note,) = prepared.notes
    assert "triton_3_1_0/E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json" in note
    assert note.endswith("kept if they can run" if source is PREDICT else "tried")
    goal = prepared.goal(KnownBefore())
    tried = {(one.point, one.config) for one in goal.incumbent_candidates()}
    assert tried >= set(goal.trusted.items()) and goal.trusted


def test_a_name_of_other_scales_is_no_older_name() -> None:
    """Before the flag, fp8 without blocks had one scale for all."""
    fp8 = parse_problem("fused_moe:E=8,N=3584,K=4096,top_k=2,dtype=fp8_w8a8")
    assert prepare(asked(fp8, H200)).kept
    channels = replace(fp8, per_channel_quant=True)  # type: ignore[type-var]
    prepared = prepare(asked(channels, H200))
    assert not (prepared.kept or prepared.notes or prepared.goal(KnownBefore()).trusted)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"FOO": 1}, "fused_moe_kernel takes no config key 'FOO'"),
        ({"BLOCK_SIZE_K": 0}, "fused_moe_kernel needs a BLOCK_SIZE_K of at least 1"),
    ],
)
def test_a_shipped_entry_that_the_kernel_does_not_take_is_told_and_kept(
    odd: dict[str, int],
    why: str,
    store: ResultStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shipped = SGLangFusedMoe.entry

    def entry(layer: SGLangFusedMoe, *about: Any) -> Config | None:
        found = shipped(layer, *about)
        at_home = about[0] is None and about[4] == 64
        return found.replace(**odd) if found and at_home else found

    monkeypatch.setattr("tuner.tuning.run.KernelCompiler", FitsAll)
    monkeypatch.setattr(SGLangFusedMoe, "entry", entry)
    monkeypatch.setitem(tuning.PREDICT_KERNELS, Effort.EXHAUSTIVE, 4)
    selection = MoeSelection((32, 64))
    report = tuned(asked(MINIMAX, H100, selection=selection, effort=Effort.EXHAUSTIVE), store)
    first, *_, up, down = sorted(report.entries, key=lambda entry: entry.point)
    assert first.incumbents["shipped"].status is Status.PREDICTED
    for kept in (up, down):
        shipped_here = kept.incumbents["shipped"]
        assert kept.config == shipped_here.config and odd.items() <= kept.config.items()
        assert (kept.status, kept.median_us) == (Status.INCUMBENT, None)
        assert shipped_here.status is Status.UNSUPPORTED
        assert why in kept.reason
    text = " ".join(report.as_text().split())
    assert "2 entries of the engine were not timed" in text and why in text
    (run,) = {winner.run_id for winner in store.winners(device=H100.name, engine="sglang")}
    tried = store.trials_page(run, None, 1000)
    assert tried and not any(trial.refused for trial in tried)

    publish_twice_as_fast(store, report)
    flags = {"--fp8-gemm-backend": "triton", "--moe-runner-backend": "triton"}
    out = tmp_path / "out"
    winners = store.winners(device=H100.name, engine="sglang")
    exported = export_device(winners, H100, ENGINE, out, allow_predicted=True, flags=flags)
    assert len(exported.files) == 2
    for file in exported.files:
        assert odd.items() <= json.loads((out / file.path).read_text())["64"].items()


def publish_twice_as_fast(store: ResultStore, report: RunReport) -> None:
    """What a measured run found at M=32: one stage more than what is shipped."""
    entries = [
        replace(
            entry,
            config=entry.config.replace(num_stages=entry.config["num_stages"] + 1),
            status=Status.OK,
            median_us=1.0,
            incumbents={"shipped": Incumbent(entry.config, Status.OK, 2.0)},
            without_us="shipped",
        )
        for entry in report.entries
        if entry.point.batch_size == 32
    ]
    points = [entry.point for entry in entries]
    key = RunKey(MINIMAX, report.environment, MeasureKind.GPU, "quick", 0, points, "s")
    store.finish_run(store.begin_run(key), entries, Totals())
