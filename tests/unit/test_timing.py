"""Graphs of launches, and how often a candidate is replayed before its time is believed."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
import torch

from tuner.devices.target import Target
from tuner.kernels.binding import Variant
from tuner.measure import timing
from tuner.problems.results import Measurement

BEST_US = 100.0


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


FIRST = {"best_us": None}  # no other candidate of the point has a time
# Times of replays, what else is so, and how many of them count with which median.
REPLAYS = {
    "surely slower than the best": ((106.0,), {}, 1, 106.0),
    "no proof if the host was late": ((420.0, 99.0, 99.0), {"in_time": False}, 3, 99.0),
    "slower twice": ((420.0, 106.0), {"in_time": False}, 2, 263.0),
    "not long if the host was late": ((99.0,) * 3, {"first_us": 4200.0, "in_time": False}, 3, 99.0),
    "the first does not count": ((99.0, 98.0, 99.5), {"first_us": BEST_US * 6.7}, 3, 99.0),
    "perhaps as fast": ((104.0, 98.0, 99.5), {}, 3, 99.5),
    "one slow replay of several": ((99.0, 130.0, 99.0, 99.0, 99.0), {}, timing.REPLAYS, 99.0),
    "the first candidate": ((500.0,) * 5, FIRST, timing.REPLAYS, 500.0),
    "until its time is up": ((2000.0,) * 2, FIRST, 2, 2000.0),
    "fewer launches": ((2000.0,) * 5, {**FIRST, "launches": 4}, timing.REPLAYS, 2000.0),
    "too long to warm up": ((), {**FIRST, "launches": 1, "first_us": 117e3}, 1, 117e3),
}


@pytest.mark.parametrize(("us", "given", "samples", "median_us"), REPLAYS.values(), ids=REPLAYS)
def test_a_candidate_is_replayed_until_its_time_is_believed(
    replayed, us, given, samples, median_us
):
    measured = replayed(*us, **given)
    assert (measured.samples, measured.median_us) == (samples, median_us)
    assert measured.min_us == min(us, default=median_us)


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
