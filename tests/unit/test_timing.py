"""Graphs of launches, and how often a candidate is replayed before its time is believed."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
import torch

from tuner.devices.target import Target
from tuner.kernels.binding import Variant
from tuner.measure import timing
from tuner.problems.results import Measurement

BEST_US = 100.0
Replayed = Callable[..., Measurement]


@pytest.fixture
def replayed(monkeypatch):
    """Times a graph whose replays take the given microseconds, after one to warm up."""

    def measure(
        *times_us: float,
        best_us: float | None = BEST_US,
        launches: int = timing.LAUNCHES,
        first_us: float = 140.0,
        in_time: bool = True,
    ) -> Measurement:
        clock = iter([first_us, *times_us])
        monkeypatch.setattr(timing, "replay", lambda graph, before: (next(clock), in_time))
        return timing.time_graph(timing.Captured(None, [None] * launches), best_us)

    return measure


def test_a_candidate_that_is_surely_slower_than_the_best_is_replayed_once(replayed):
    measured = replayed(BEST_US * 1.06)
    assert (measured.samples, measured.median_us) == (1, BEST_US * 1.06)


def test_one_replay_is_no_proof_that_a_candidate_is_slower_if_the_host_was_late(replayed):
    measured = replayed(420.0, 99.0, 99.0, in_time=False)
    assert (measured.samples, measured.median_us) == (3, 99.0)
    assert replayed(420.0, 106.0, in_time=False).samples == 2


def test_a_first_replay_is_not_taken_for_a_long_one_if_the_host_was_late(replayed):
    measured = replayed(99.0, 99.0, 99.0, first_us=4_200.0, in_time=False)
    assert (measured.samples, measured.median_us) == (3, 99.0)


def test_a_first_replay_does_not_count_however_slow_it_is(replayed):
    measured = replayed(99.0, 98.0, 99.5, first_us=BEST_US * 6.7)
    assert (measured.samples, measured.median_us) == (3, 99.0)


def test_a_candidate_that_may_be_as_fast_is_replayed_again(replayed):
    measured = replayed(104.0, 98.0, 99.5)
    assert (measured.samples, measured.median_us, measured.min_us) == (3, 99.5, 98.0)


def test_one_slow_replay_of_several_does_not_end_it(replayed):
    assert replayed(99.0, 130.0, 99.0, 99.0, 99.0).samples == timing.REPLAYS


def test_the_first_candidate_of_a_point_is_replayed_in_full(replayed):
    assert replayed(*[500.0] * 5, best_us=None).samples == timing.REPLAYS


def test_a_long_candidate_is_replayed_until_its_time_is_up(replayed):
    assert replayed(2000.0, 2000.0, best_us=None).samples == 2


def test_a_long_replay_needs_none_to_warm_up(replayed):
    measured = replayed(best_us=None, launches=1, first_us=117_000.0)
    assert (measured.samples, measured.median_us) == (1, 117_000.0)


@pytest.mark.parametrize(("graph_us", "rounds"), [(500.0, 9), (30_000.0, 5), (117_000.0, 3)])
def test_long_graphs_are_raced_in_fewer_rounds(monkeypatch, graph_us, rounds):
    monkeypatch.setattr(timing, "replay", lambda graph, before: (graph_us / graph.launches, True))
    graphs = [timing.Captured(None, [None])] * 2
    assert [len(samples) for samples in timing.race(graphs, 9)] == [rounds] * 2


def test_who_has_clearly_lost_is_raced_no_longer(monkeypatch):
    times = {1: 100.0, 2: 101.5, 3: 103.0}  # by the number of launches
    monkeypatch.setattr(timing, "replay", lambda graph, before: (times[graph.launches], True))
    graphs = [timing.Captured(None, [None] * launches) for launches in times]
    assert [len(samples) for samples in timing.race(graphs, 9)] == [9, 9, 3]


@pytest.mark.parametrize(
    ("launch_us", "in_time"), [(60.0, True), (timing.HOLD_US + 1.5, True), (180.0, False)]
)
def test_a_time_begins_while_the_gpu_is_busy(monkeypatch, launch_us, in_time):
    """An idle GPU would pass the first event, and wait for the host: its time would count."""
    said: list[str] = []
    clock = iter([0.0, launch_us * 1e-6])

    class Event(SimpleNamespace):
        def record(self) -> None:
            said.append("event")

        def synchronize(self) -> None:
            said.append("waited")

        def elapsed_time(self, end: Event) -> float:
            return 1.0  # ms

    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event())
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: said.append("held"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    graph = SimpleNamespace(replay=lambda: said.append("replayed"))
    captured = timing.Captured(graph, [None] * 10)
    assert timing.replay(captured, lambda: said.append("before")) == (100.0, in_time)
    assert said == ["before", "held", "event", "replayed", "event", "waited"]


class OpenGraph:
    """A CUDA graph as far as a capture uses it; it has no device."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def capture_begin(self) -> None:
        self.said.append("begin")

    def capture_end(self) -> None:
        self.said.append("end")


@pytest.fixture
def no_device(monkeypatch):
    """The streams on which kernels were launched."""
    streams: list[int | None] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", OpenGraph)
    monkeypatch.setattr(timing, "elapsed_us", lambda work: work() or 20.0)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(timing, "launch", lambda *launched: streams.append(launched[-1]))
    return streams


def test_a_graph_of_fewer_launches_is_replayed_more_often(replayed):
    assert replayed(*[2000.0] * 5, best_us=None, launches=4).samples == timing.REPLAYS


def test_a_captured_graph_keeps_the_tensors_that_it_reads(no_device):
    """A graph has addresses only: a freed tensor's memory would be the next candidate's."""
    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    graph = timing.capture(timing.BoundKernel(None, None, (1,)), [[tensor]])
    del tensor
    gc.collect()
    assert alive() is not None
    del graph
    gc.collect()
    assert alive() is None


def test_the_first_launch_is_before_the_capture_and_all_are_in_it(no_device):
    captured = timing.capture(timing.BoundKernel(None, None, (1,)), [[], []])
    assert no_device == [None, 7, 7]
    assert captured.graph.said == ["begin", "end"]


@pytest.mark.parametrize(
    ("chain_us", "least", "launched"),
    [(900.0, 1, 10), (2_000.0, 1, 5), (117_000.0, 1, 1), (117_000.0, 10, 10)],
)
def test_a_graph_of_long_launches_has_few(no_device, monkeypatch, chain_us, least, launched):
    # The first run of a kernel loads it, which takes longer than a short launch.
    clock = iter([chain_us + 5_000.0, chain_us])
    monkeypatch.setattr(timing, "elapsed_us", lambda work: work() or next(clock))
    kernel = timing.BoundKernel(None, None, (1,))
    assert timing.capture(kernel, [[] for _ in range(10)], least).launches == launched
    assert no_device.count(7) == launched


def test_a_capture_ends_where_a_launch_fails(no_device, monkeypatch):
    made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made.append(OpenGraph()) or made[-1])

    def fail(*launched):
        if launched[-1] is not None:
            raise RuntimeError("refused")

    monkeypatch.setattr(timing, "launch", fail)
    with pytest.raises(RuntimeError, match="refused"):
        timing.capture(timing.BoundKernel(None, None, (1,)), [[]])
    assert made[0].said == ["begin", "end"]


def test_a_kernel_that_two_points_share_is_read_once(monkeypatch, tmp_path):
    compiled = []
    monkeypatch.setattr(timing, "compile_kernel", lambda *asked: compiled.append(asked) or object())
    timing._compiled.cache_clear()
    variant = Variant("kernel", {"x": "*fp32"}, {}, (), {"num_warps": 4})
    binding = SimpleNamespace(variant=lambda: variant)
    first, second = (
        timing.load(tmp_path, binding, grid, Target("cuda", 90, 32)) for grid in ((1,), (2,))
    )
    assert first.compiled is second.compiled and first.grid != second.grid
    assert len(compiled) == 1
