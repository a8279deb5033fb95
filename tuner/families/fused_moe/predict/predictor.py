"""Times from a model of the device, corrected a little by what has won elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

from tuner.devices.constants import Constants
from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.fused_moe.engine import ShippedFile
from tuner.families.fused_moe.predict.corpus import Prior
from tuner.families.fused_moe.predict.device_model import DeviceModel
from tuner.families.fused_moe.predict.footprints import estimate_footprint
from tuner.families.fused_moe.predict.shortlist import cover, needs, summed
from tuner.families.fused_moe.problem import FusedMoe, gemm_of
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status

# The most that the corpus may add to a time. The model's own error is a factor of about 1.11
# (one standard deviation), so winners elsewhere decide between configurations that the model
# cannot tell apart, and never against a clear verdict of its own.
CORPUS_WEIGHT = 0.10
# A pair replaces the engine's own where it is predicted to take this much less time;
# docs/predict.md has what other thresholds would have won and lost on an H200.
CLEAR_GAIN = 0.05
MOST_SHORTFALL = 2.5  # of a configuration's values; beyond e**2.5 = 12 times rarer is rare


class Predictor:
    """A `Measurer` that runs nothing."""

    def __init__(
        self,
        device: Device,
        problem: FusedMoe,
        corpus: Iterable[ShippedFile] = (),
        *,
        constants: Constants = Constants(),
        corpus_weight: float = CORPUS_WEIGHT,
    ) -> None:
        self._device = device
        self._problem = problem
        self._model = DeviceModel(device, problem, constants)
        self._prior = Prior(problem, device, corpus)
        self._corpus_weight = corpus_weight
        self._footprints = lru_cache(maxsize=None)(partial(estimate_footprint, problem, device))

    def predict_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """The model's microseconds of a launch; the corpus has no part in it."""
        return self._model.predict(point, config, Footprint.of(compiled)).total_us

    def score_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """What to choose by: the model's time, longer the rarer its kind of winner is."""
        return self._score(point, config, Footprint.of(compiled))

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """The score as `median_us`; `detail` has the model's own time."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        score = self.score_us(candidate.point, candidate.config, compiled)
        model = self.predict_us(candidate.point, candidate.config, compiled)
        return Measurement(
            Status.PREDICTED, median_us=score, detail=f"{model:.1f} us by the device model alone"
        )

    def shortlist(self, point: Point, configs: Iterable[Config], n: int) -> list[Config]:
        """The `n` best of configurations that are not compiled yet, best first.

        Footprints are estimates, so the first may turn out not to fit.
        """
        scores = self.estimate_all(point, configs)
        return sorted(scores, key=lambda config: (scores[config], config.key))[:n]

    def shortlist_all(
        self, configs: Mapping[Point, Sequence[Config]], budget: int, *, one_config: bool = False
    ) -> dict[Point, list[Config]]:
        """At most `budget` distinct (gemm, config) pairs in all, that serve every point; best
        first.

        A point is offered everything chosen for its gemm, as batch sizes share what is compiled.
        Up and down of a batch size have choices of the same BLOCK_SIZE_M, which they must share
        (`one_config`: choices of the same configuration, for engines that read one file for
        both), and second choices for where the first turns out not to fit.
        """
        scores = {point: self.estimate_all(point, some) for point, some in configs.items()}
        gemms = {gemm_of(point) for point in scores}
        if one_config:
            one = min(gemms)
            found = cover(needs(summed(scores, one)), budget // len(gemms))
            chosen = {(gemm, config) for _, config in found for gemm in gemms}
        else:
            chosen = set(cover(needs(scores), budget))
        return {
            point: sorted(
                (config for config in scored if (gemm_of(point), config) in chosen),
                key=lambda config: (scored[config], config.key),
            )
            for point, scored in scores.items()
        }

    def estimate_all(self, point: Point, configs: Iterable[Config]) -> dict[Config, float]:
        """Scores by estimated footprints, of those that are likely to fit."""
        scores = {}
        for config in configs:
            footprint = self._footprints(config)
            if footprint.shared_bytes <= self._device.shared_optin_bytes:
                scores[config] = self._score(point, config, footprint)
        return scores

    def _score(self, point: Point, config: Config, footprint: Footprint) -> float:
        shortfall = min(self._prior.shortfall(point, config), MOST_SHORTFALL)
        model_us = self._model.predict(point, config, footprint).total_us
        return model_us * math.exp(self._corpus_weight * shortfall)
