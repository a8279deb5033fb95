"""Measure the candidates of one state update on this process's GPU.

This was not run on a GPU yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.engines.engine import find_engine
from tuner.families.state_update.batch import WORST_ERROR, StateUpdateBatches
from tuner.families.state_update.engine import StateLaunch, state_engine
from tuner.families.state_update.problem import StateUpdate
from tuner.measure.chain_session import ChainSession
from tuner.measure.messages import read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.problems.points import Config

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
