"""Check and time candidates that launch one kernel or several in turn, or a backend's kernels.

Imports torch and triton.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
import triton

from tuner.backends.operands import Call, Unsupported
from tuner.backends.registry import Backend, find_backend, no_module
from tuner.devices.target import Target
from tuner.kernels.binding import Binding
from tuner.measure.messages import measurement_fields, read_point
from tuner.measure.timing import (
    BoundKernel,
    Chain,
    LibraryCall,
    capture_chains,
    load,
    race,
    time_graph,
)
from tuner.problems.points import TRITON, Config
from tuner.problems.results import Measurement, Status

Fields = dict[str, Any]


class Launched(Protocol):
    """One kernel of a candidate."""

    @property
    def binding(self) -> Binding: ...
    @property
    def grid(self) -> tuple[int, ...]: ...


L = TypeVar("L", bound=Launched)
Loaded = tuple[list[L], list[BoundKernel]]


class Batch(Protocol[L]):
    """The tensors of one size."""

    def chains(self, launches: list[L], kernels: list[BoundKernel]) -> list[Chain]:
        """The kernels with the tensors of each launch of a graph."""

    def error(self, chain: Chain) -> float:
        """The worst error of the first of `chains`."""


class Batches(Protocol[L]):
    """The tensors of a problem, for any size."""

    def at(self, batch_size: int) -> Batch[L]: ...
    def places(self, batch_size: int) -> Sequence[Batch[L]]:
        """The same tensors at several places in memory."""

    def push_out(self) -> None:
        """Empty the last cache before memory, where that is needed."""


class ChainSession(ABC, Generic[L]):
    """A session of `tuner.measure.gpu_child`, which describes the requests.

    A race times its candidates at several places in memory, because the ratio of two candidates'
    times depends on the places, and a server's tensors lie elsewhere again.
    """

    def __init__(self, batches: Batches[L], source: Path, target: Target, bound: float) -> None:
        """`source`: the lifted kernels. `bound`: the worst error of a correct kernel."""
        self._batches, self._source, self._target = batches, source, target
        self._bound = bound

    @abstractmethod
    def _launches(self, batch_size: int, config: Config) -> list[L]:
        """What the engine launches for a configuration."""

    def _calls(self, batch: Batch[L], backend: str) -> list[Call]:
        """Another backend's calls with the tensors of each launch of a graph.

        Raises Unsupported, or what the library raises.
        """
        raise Unsupported("no other backend runs this here")

    def _error(self, batch: Batch[L], backend: str) -> float:
        """The worst error of another backend. Raises as `_calls` does."""
        raise Unsupported("no other backend runs this here")

    def measure(self, request: Fields) -> Fields:
        """Check one candidate, then time it."""
        size, config = read_point(request).batch_size, Config(request["config"])
        batch, backend = self._batches.at(size), request.get("backend", TRITON)
        if backend != TRITON:
            own = partial(self._calls, batch, backend), partial(self._error, batch, backend)
            return measurement_fields(measured(*own, self._bound, self._batches.push_out))
        try:
            chains = batch.chains(*self._loaded(size, config))
            error = batch.error(chains[0])
        except triton.runtime.errors.OutOfResources as refusal:
            return measurement_fields(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        if not error <= self._bound:
            detail = f"differs from the reference by {error:.3g}, bound {self._bound}"
            return measurement_fields(Measurement(Status.WRONG_RESULT, detail=detail))
        timed = time_graph(capture_chains(chains), request["best_us"], self._batches.push_out)
        return measurement_fields(replace(timed, detail=f"worst error {error:.2g}"))

    def race(self, request: Fields) -> Fields:
        """Time several candidates of one point in turn, at several places in memory."""
        size = read_point(request).batch_size
        loaded = [self._loaded(size, Config(fields)) for fields in request["configs"]]
        rounds = -(-request["rounds"] // 2)  # at each place
        samples = []
        for batch in self._batches.places(size):
            chains = [batch.chains(*one) for one in loaded]
            chains += [chains_of(self._calls(batch, n)) for n in request.get("backends", [])]
            graphs = [capture_chains(some) for some in chains]
            samples.append(race(graphs, rounds, self._batches.push_out))
        return {"measurements": [_raced(one) for one in zip(*samples, strict=True)]}

    def _loaded(self, batch_size: int, config: Config) -> Loaded[L]:
        launches = self._launches(batch_size, config)
        kernels = [load(self._source, one.binding, one.grid, self._target) for one in launches]
        return launches, kernels


def _raced(places: Sequence[Sequence[float]]) -> Fields:
    """One candidate's measurement, from its times at each place."""
    mean_us = statistics.fmean(statistics.median(some) for some in places)
    least_us = min(min(some) for some in places)
    replays = sum(len(some) for some in places)
    return measurement_fields(Measurement(Status.OK, mean_us, least_us, replays))


def backend_of(name: str, family: str) -> Backend:
    """The backend of a name. Raises Unsupported where nothing here runs it for the family, or it is
    missing.
    """
    backend = find_backend(name)
    if backend is None or family not in backend.families:
        raise Unsupported(no_module(name, family))
    if backend.missing:
        raise Unsupported(backend.missing)
    return backend


def chains_of(calls: Sequence[Call]) -> list[Chain]:
    """A chain for each call."""
    return [[(LibraryCall(call), [])] for call in calls]


def measured(
    prepare: Callable[[], Sequence[Call]],
    error_of: Callable[[], float],
    bound: float,
    before: Callable[[], object] | None = None,
) -> Measurement:
    """Check a backend, then time it.

    `prepare` gives the calls of a graph; `error_of` checks the backend's output. What the backend
    refuses is UNSUPPORTED. A CUDA error spoils the process and is raised.
    """
    try:
        error = error_of()
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound:.3g}"
            return Measurement(Status.WRONG_RESULT, detail=detail)
        timed = time_graph(capture_chains(chains_of(prepare())), None, before)
    except Unsupported as refusal:
        return Measurement(Status.UNSUPPORTED, detail=str(refusal))
    except Exception as failure:  # libraries refuse with errors of all kinds
        torch.cuda.synchronize()  # raises what the device has to say
        text = " ".join(str(failure).split())
        detail = f"{type(failure).__name__}: {text}"[:300]
        return Measurement(Status.UNSUPPORTED, detail=detail)
    return replace(timed, detail=f"worst error {error:.2g}")
