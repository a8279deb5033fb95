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

from tuner.measure import timing
from tuner.problems.results import Measurement

BEST_US = 100.0
Replayed = Callable[..., Measurement]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """Times a graph whose replays take the given microseconds, after one to warm up."""

    def measure(*times_us: float, best_us: float | None = BEST_US) -> Measurement:
        clock = iter([999.0, *times_us])
        monkeypatch.setattr(timing, "replay_us", lambda graph, before=None: next(clock))
        return timing.time_graph(SimpleNamespace(), best_us)

    return measure


def test_a_candidate_that_is_surely_slower_than_the_best_is_replayed_once(replayed) -> None:
    measured = replayed(BEST_US * 1.06)
    assert (measured.samples, measured.median_us) == (1, BEST_US * 1.06)


def test_a_candidate_that_may_be_as_fast_is_replayed_again(replayed) -> None:
    measured = replayed(104.0, 99.0, 98.0, 101.0, 99.5)
    assert (measured.samples, measured.median_us, measured.min_us) == (5, 99.5, 98.0)


def test_one_slow_replay_of_several_does_not_end_it(replayed) -> None:
    assert replayed(99.0, 130.0, 99.0, 99.0, 99.0).samples == timing.REPLAYS


def test_the_first_candidate_of_a_point_is_replayed_in_full(replayed) -> None:
    assert replayed(*[500.0] * 5, best_us=None).samples == timing.REPLAYS


def test_a_long_candidate_is_replayed_until_its_time_is_up(replayed) -> None:
    assert replayed(2000.0, 2000.0, best_us=None).samples == 2


def test_a_captured_graph_keeps_the_tensors_that_it_reads(monkeypatch):
    """A graph has addresses only: a freed tensor's memory would be the next candidate's."""
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(timing, "launch", lambda *launched: None)
    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    graph = timing.capture(timing.BoundKernel(None, None, (1,)), [[tensor]])
    del tensor
    gc.collect()
    assert alive() is not None
    del graph
    gc.collect()
    assert alive() is None
