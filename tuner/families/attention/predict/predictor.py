"""Attention's times from a model of the device, and how far to trust them."""

from __future__ import annotations

from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.attention.predict.model import AttentionModel
from tuner.families.attention.predict.steps import AttentionConstants
from tuner.families.attention.problem import Attention
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status

# A choice is worth leaving the engine's own constants for where it is predicted to take this much
# less time; docs/predict.md has what other thresholds would have won and lost on an H200.
CLEAR_GAIN = 0.2
# Where a kernel's spills stand, inside its loop or before it, is not known; what spills so many
# bytes a thread is chosen only where nothing else is nearly as good.
SPILLS = ((1024, 1.5), (128, 1.15))


class AttentionPredictor:
    """A `Measurer` that runs nothing."""

    def __init__(
        self,
        device: Device,
        problem: Attention,
        constants: AttentionConstants = AttentionConstants(),
    ) -> None:
        self._model = AttentionModel(device, problem, constants)

    def predict_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """The model's microseconds of a launch."""
        return self._model.predict(point, config, Footprint.of(compiled)).total_us

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """What to choose by as `median_us`; `detail` has the model's own time."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        model = self.predict_us(candidate.point, candidate.config, compiled)
        spills = compiled.n_spills or 0
        caution = next((factor for least, factor in SPILLS if spills > least), 1.0)
        return Measurement(
            Status.PREDICTED, median_us=caution * model, detail=f"{model:.1f} us by the model"
        )
