"""Measure the candidates of one state update on this process's GPU, on tensors that are kept.

The launches of a graph update different slots of one pool of states, as the layers of a server do.
Where the states of one launch are much larger than L2, all launches share their slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tuner.engines.engine import find_engine
from tuner.families.state_update.engine import StateLaunch, state_engine
from tuner.families.state_update.inputs import (
    LayerWeights,
    StepTensors,
    make_layer,
    make_states,
    make_step,
    operands,
    reference,
)
from tuner.families.state_update.problem import StateUpdate
from tuner.kernels.values import launch_values
from tuner.measure.chain_session import ChainSession
from tuner.measure.messages import read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.measure.timing import COLD, LAUNCHES, BoundKernel, Chain, ColdCache, Reference, run_chain
from tuner.problems.points import Config

# The largest |difference| / (|expected| + rms) of a correct kernel: twice the rounding of a 16-bit
# output. Through Triton's interpreter, which cuts bfloat16, it is 0.006 at most (tests/engines).
WORST_ERROR = 0.01
CHECKED = 1 << 25  # states that are compared; of more, those of evenly spread sequences
PLACES = 4  # in memory, at which a race times its candidates


@dataclass(frozen=True)
class StateUpdateBatch:
    """The tensors of one number of sequences: inputs for each launch of a graph."""

    problem: StateUpdate
    layer: LayerWeights
    states: Tensor
    steps: list[StepTensors]

    def chains(self, launches: list[StateLaunch], kernels: list[BoundKernel]) -> list[Chain]:
        """The kernel with the tensors of each launch of a graph."""
        return [self._chain(launches[0], kernels[0], step) for step in self.steps]

    def _chain(self, launch: StateLaunch, kernel: BoundKernel, step: StepTensors) -> Chain:
        tensors = operands(self.problem, self.layer, step, self.states)
        return [(kernel, launch_values(launch.binding, tensors))]

    def moved(self, seed: int) -> StateUpdateBatch:
        """The same inputs elsewhere in memory, and other slots for each launch."""
        generator = torch.Generator("cpu").manual_seed(seed)
        steps = []
        for step in self.steps:
            copy = step.clone()
            order = torch.randperm(len(copy.indices), generator=generator)
            steps.append(
                StepTensors(copy.projected, copy.indices[order.to(copy.indices.device)], copy.out)
            )
        return StateUpdateBatch(self.problem, self.layer, self.states, steps)

    @cached_property
    def _rows(self) -> Tensor:
        """The sequences that are compared."""
        n, problem = len(self.steps[0].indices), self.problem
        each = problem.heads * problem.head_dim * problem.state_size
        most = max(1, min(n, CHECKED // each))
        return torch.linspace(0, n - 1, most, device=self.states.device).round_().long()

    @cached_property
    def _before(self) -> Tensor:
        """The states of the compared sequences, as they were made."""
        return self.states[self._slots].clone()

    @cached_property
    def _expected(self) -> tuple[Reference, Reference]:
        first, rows = self.steps[0], self._rows
        out, states = reference(self.problem, self.layer, first, self._before, rows)
        return Reference(out), Reference(states)

    @property
    def _slots(self) -> Tensor:
        return self.steps[0].indices[self._rows, 0].long()

    def error(self, chain: Chain) -> float:
        """The worst error of the first of `chains`, of the outputs and of the new states. Each
        check begins with the same states, and outputs are filled with NaN before.
        """
        first, slots = self.steps[0], self._slots
        self.states[slots] = self._before
        first.out.fill_(float("nan"))
        out, states = self._expected
        run_chain(chain)
        return max(out.worst_error(first.out[self._rows]), states.worst_error(self.states[slots]))


class StateUpdateBatches:
    """The batches of one problem. Only the last one is kept: a pool of states is large."""

    def __init__(self, problem: StateUpdate, seed: int, l2_bytes: int) -> None:
        self._problem, self._seed, self._l2_bytes = problem, seed, l2_bytes
        self._kept: tuple[int, StateUpdateBatch] | None = None

    def at(self, batch_size: int) -> StateUpdateBatch:
        """A batch size's tensors."""
        if self._kept is None or self._kept[0] != batch_size:
            self._kept = None  # gives its memory back first
            self._kept = batch_size, self._make(batch_size)
        return self._kept[1]

    def places(self, batch_size: int) -> list[StateUpdateBatch]:
        """The same batch at PLACES places in memory."""
        first = self.at(batch_size)
        return [first, *(first.moved(self._seed + at) for at in range(1, PLACES))]

    def push_out(self) -> None:
        """Empty L2 where states would stay there."""
        if self._kept is not None:
            size = self._kept[0]
            held = self._problem.state_bytes * size * self._copies(size)
            self._cold(held).push_out()

    def needed_bytes(self, largest: int) -> int:
        """Bytes of device memory for the largest batch, with its reference."""
        problem = self._problem
        inner = problem.heads * problem.head_dim
        row = 3 * inner + 2 * problem.groups * problem.state_size + problem.heads
        steps = PLACES * LAUNCHES * largest * row * 8  # float32 while they are made
        checked = 6 * 4 * max(CHECKED, inner * problem.state_size)
        return problem.state_bytes * (largest * self._copies(largest) + 1) + steps + checked

    def _copies(self, batch_size: int) -> int:
        """How many sets of slots the launches of a graph have."""
        large = self._problem.state_bytes * batch_size > COLD * self._l2_bytes
        return 1 if large else LAUNCHES

    def _cold(self, held: int) -> ColdCache:
        if held not in self._caches:
            self._caches[held] = ColdCache(self._l2_bytes, held)
        return self._caches[held]

    @cached_property
    def _caches(self) -> dict[int, ColdCache]:
        return {}

    @cached_property
    def _layer(self) -> LayerWeights:
        return make_layer(self._problem, device="cuda", seed=self._seed)

    def _make(self, batch_size: int) -> StateUpdateBatch:
        problem, copies = self._problem, self._copies(batch_size)
        slots = batch_size * copies
        states = make_states(problem, slots, device="cuda", seed=self._seed + 1)
        # A server's sequences have slots in no order.
        generator = torch.Generator("cpu").manual_seed(self._seed)
        shuffled = torch.randperm(slots, generator=generator).to("cuda").view(copies, batch_size)
        steps = [
            make_step(
                problem, batch_size, shuffled[at % copies], device="cuda", seed=self._seed + 2 + at
            )
            for at in range(LAUNCHES)
        ]
        return StateUpdateBatch(problem, self._layer, states, steps)


Fields = dict[str, Any]


class StateUpdateOnGpu(ChainSession[StateLaunch]):
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: StateUpdate, request: Fields) -> None:
        target = local_target()
        self._problem = problem
        self._kernels = state_engine(find_engine(request["engine"])).lift(target.backend)
        batches = StateUpdateBatches(problem, request["seed"], last_cache_bytes())
        source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        super().__init__(batches, source, target, WORST_ERROR)
        largest = max(read_point(fields).batch_size for fields in request["points"])
        self.ready: Fields = {"needed_bytes": batches.needed_bytes(largest)}

    def _launches(self, batch_size: int, config: Config) -> list[StateLaunch]:
        return [self._kernels.launch(self._problem, batch_size, config, self._target)]


def open_session(problem: StateUpdate, request: Fields) -> StateUpdateOnGpu:
    return StateUpdateOnGpu(problem, request)
