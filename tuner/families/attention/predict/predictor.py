"""Predict attention's times, with margins for the model's error."""

from __future__ import annotations

from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.attention.predict.model import AttentionModel
from tuner.families.attention.predict.steps import AttentionConstants
from tuner.families.attention.problem import Attention
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status

# A choice replaces the engine's own constants if it is predicted to take this much less time;
# docs/predict.md shows the gains and losses of other thresholds on an H200.
CLEAR_GAIN = 0.2
# (bytes spilled per thread, factor on the time). The model does not know whether a kernel spills
# inside its loop, so such kernels are chosen only if all others are clearly slower.
SPILLS = ((1024, 1.5), (128, 1.15))


class AttentionPredictor:
    """A `Measurer` that predicts and runs nothing."""

    def __init__(
        self,
        device: Device,
        problem: Attention,
        constants: AttentionConstants = AttentionConstants(),
    ) -> None:
        self._model = AttentionModel(device, problem, constants)

    def predict_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """The model's microseconds for a launch."""
        return self._model.predict(point, config, Footprint.of(compiled)).total_us

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """The time to choose by as `median_us`, and the model's time in `detail`."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        model = self.predict_us(candidate.point, candidate.config, compiled)
        spills = compiled.n_spills or 0
        caution = next((factor for least, factor in SPILLS if spills > least), 1.0)
        return Measurement(
            Status.PREDICTED, median_us=caution * model, detail=f"{model:.1f} us by the model"
        )
