"""Predict times with the device model and the constants of fused MoE; nothing is fitted anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from tuner.devices.constants import Constants
from tuner.devices.table import Device
from tuner.devices.tile_model import Footprint, GemmModel, Product, RowBlocks, estimate_footprint
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status
from tuner.tuning.seeds import Need, cover

# A configuration replaces the engine's if it is predicted to take this much less time. With the 5 %
# of fused MoE, a point of the H100 recordings lost 3 %; with 10 % none lost anything.
CLEAR_GAIN = 0.10
LEAST_TILE = 16  # rows of the smallest instruction


class GemmPredictor:
    """A `Measurer` that predicts and runs nothing."""

    def __init__(
        self, device: Device, problem: DenseGemm, constants: Constants = Constants()
    ) -> None:
        self._device, self._problem, self._constants = device, problem, constants
        self._model = GemmModel(device, problem.dtype, _rescales(problem), constants)
        self._unmodelled = {name for name, _ in device.architecture.launch_options}
        self._footprints = lru_cache(maxsize=None)(self._estimate)

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """Return the model's time as `median_us`."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        us = self._predict(candidate.point, candidate.config, Footprint.of(compiled))
        return Measurement(Status.PREDICTED, us, detail="by the device model")

    def considers(self, point: Point, config: Config) -> bool:
        """Say whether the model can judge a configuration at a point.

        Kernels read A's rows modulo M. So a tile that is taller than the batch reads rows
        repeatedly, and if M is 1 not even in vectors. The model does not see this: on an H100 it
        preferred tiles of 64 rows at M = 1, which took up to three times the best time. The model
        does not know the options of AMD's compiler either. AMD's cards do not copy to LDS in the
        background: with few exceptions, engines ship two stages for them.
        """
        if self._unmodelled and (self._unmodelled & config.keys() or config["num_stages"] != 2):
            return False
        return config["BLOCK_SIZE_M"] <= max(LEAST_TILE, 1 << (point.batch_size - 1).bit_length())

    def shortlist(self, point: Point, configs: Iterable[Config], n: int) -> list[Config]:
        """Return the `n` best of configurations that are not compiled yet, best first.

        Footprints are estimates, so some of the configurations may not fit.
        """
        scores = self._judged(point, configs)
        return sorted(scores, key=lambda config: (scores[config], config.key))[:n]

    def shortlist_all(
        self, configs: Mapping[Point, Sequence[Config]], budget: int
    ) -> dict[Point, list[Config]]:
        """Return at most `budget` distinct configurations in all, by point and best first.

        Batch sizes share compiled kernels, so a point gets every chosen configuration that its
        space has.
        """
        scores = {point: self._judged(point, some) for point, some in configs.items()}
        chosen = {config for _, config in cover(_needs(scores), budget)}
        return {
            point: sorted(
                (config for config in scored if config in chosen),
                key=lambda config: (scored[config], config.key),
            )
            for point, scored in scores.items()
        }

    def estimate_all(self, point: Point, configs: Iterable[Config]) -> dict[Config, float]:
        """Return times by estimated footprint, for the configurations that will probably fit."""
        found = {}
        for config in configs:
            footprint = self._footprints(config)
            if footprint.shared_bytes <= self._device.shared_optin_bytes:
                found[config] = self._predict(point, config, footprint)
        return found

    def _judged(self, point: Point, configs: Iterable[Config]) -> dict[Config, float]:
        return self.estimate_all(point, [c for c in configs if self.considers(point, c)])

    def _predict(self, point: Point, config: Config, footprint: Footprint) -> float:
        M, N, K = point.batch_size, self._problem.N, self._problem.K
        blocks = math.ceil(M / config["BLOCK_SIZE_M"])
        splits = config.get("SPLIT_K", 1)
        product = Product(N, K, M, M, RowBlocks(1, blocks, M / blocks), splits)
        swap = bool(config.get("SWAP_AB"))
        us = self._model.predict(product, config, footprint, swap).total_us
        return us + (self._reduce_us(M * N, splits) if splits > 1 else 0.0)

    def _reduce_us(self, elements: int, splits: int) -> float:
        """Return the microseconds of the kernel that adds up the parts of a split. The parts are
        read from L2 or from memory; the rest of the time is a block's series of loads and stores.
        """
        c, device = self._constants, self._device
        read = elements * splits * 4
        spilt = max(0.0, 1 - device.l2_bytes / read)
        dram_us = (read * spilt + elements * 2) / device.bandwidth_gbs / 1e3 / c.dram_efficiency
        series_us = (c.start_ns + c.l2_latency_ns + c.end_ns) / 1e3
        return c.launch_us + series_us + dram_us

    def _estimate(self, config: Config) -> Footprint:
        problem = self._problem
        return estimate_footprint(
            problem.dtype,
            self._device,
            config,
            swap=bool(config.get("SWAP_AB")),
            two_sums=problem.block is not None,
        )


def _rescales(problem: DenseGemm) -> int:
    """Return how often a step scales or converts each accumulator. Without blocks the kernel does
    both once, after its last step.
    """
    if problem.block is None:
        return 0
    return 1 + (problem.dtype is Dtype.INT8_W8A8)


def _needs(scores: Mapping[Point, Mapping[Config, float]]) -> list[Need]:
    found = []
    for point, scored in scores.items():
        best = min(scored.values(), default=1.0)
        excess = {config: math.log(score / best) for config, score in scored.items()}
        found.append(Need(point, 1.0, excess))
    return found
