"""Measure the candidates of one dense GEMM on this process's GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.backends.operands import Call
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.batch import WORST_ERROR, GemmBatches, Library
from tuner.families.dense_gemm.batch import GemmBatch as GemmBatch
from tuner.families.dense_gemm.engine import GemmLaunch, gemm_engine
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.measure.chain_session import Batch, ChainSession, backend_of
from tuner.measure.messages import read_point
from tuner.measure.this_gpu import last_cache_bytes, local_target
from tuner.problems.points import Config

Fields = dict[str, Any]


class GemmOnGpu(ChainSession[GemmLaunch]):
    """Checks and times candidates. `tuner.measure.gpu_child` describes the requests."""

    def __init__(self, problem: DenseGemm, request: Fields) -> None:
        target = local_target()
        self._problem = problem
        self._kernels = gemm_engine(find_engine(request["engine"])).lift(target.backend)
        batches = GemmBatches(problem, request["seed"], last_cache_bytes())
        source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        super().__init__(batches, source, target, WORST_ERROR[problem.dtype])
        largest = max(read_point(fields).batch_size for fields in request["points"])
        self.ready: Fields = {"needed_bytes": batches.needed_bytes(largest)}

    def _launches(self, batch_size: int, config: Config) -> list[GemmLaunch]:
        return self._kernels.launches(self._problem, batch_size, config, self._target)

    def _calls(self, batch: Batch[GemmLaunch], backend: str) -> list[Call]:
        assert isinstance(batch, GemmBatch)
        return batch.calls(self._library(backend))

    def _error(self, batch: Batch[GemmLaunch], backend: str) -> float:
        assert isinstance(batch, GemmBatch)
        return batch.library_error(self._library(backend))

    def _library(self, name: str) -> Library:
        library: Library = backend_of(name, self._problem.family).module().gemm
        return library


def open_session(problem: DenseGemm, request: Fields) -> GemmOnGpu:
    return GemmOnGpu(problem, request)
