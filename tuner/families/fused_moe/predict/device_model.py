"""Predict the microseconds of a fused-MoE kernel; docs/predict.md explains the model."""

from __future__ import annotations

from functools import lru_cache

from tuner.devices.constants import Constants
from tuner.devices.footprints import estimate_footprint
from tuner.devices.gemm import GemmModel, Prediction, Product
from tuner.devices.occupancy import Footprint
from tuner.devices.table import Device
from tuner.families.fused_moe.predict.padding import expected_load
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.families.fused_moe.swap_ab import swaps_ab
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point


class DeviceModel:
    """Predicts launches of one layer on one device."""

    def __init__(
        self, device: Device, problem: FusedMoe, constants: Constants = Constants()
    ) -> None:
        self._device = device
        self._problem = problem
        self._model = GemmModel(device, problem.dtype, _rescales(problem), constants)
        self._product = lru_cache(maxsize=None)(self._launch)

    def predict(self, point: Point, config: Config, footprint: Footprint) -> Prediction:
        """Predict one launch at `point`."""
        swap = swaps_ab(config, self._problem.dtype, self._device.target)
        product = self._product(point, config["BLOCK_SIZE_M"])
        return self._model.predict(product, config, footprint, swap)

    def _launch(self, point: Point, block_m: int) -> Product:
        device, problem, tokens = self._device, self._problem, point.batch_size
        columns, reduced = problem.gemm_shape(gemm_of(point))
        routed = tokens * problem.top_k
        row_bytes = reduced * problem.dtype.activation_bits / 8
        kept = gemm_of(point) is Gemm.UP and tokens * row_bytes <= device.l2_bytes
        return Product(
            columns,
            reduced,
            outputs=routed,
            inputs=tokens if kept else routed,
            load=expected_load(tokens, problem.E, problem.top_k, block_m),
        )


def estimate(problem: FusedMoe, device: Device, config: Config) -> Footprint:
    """The resources that a layer's kernel will probably need; see `estimate_footprint`."""
    return estimate_footprint(
        problem.dtype,
        device,
        config,
        swap=swaps_ab(config, problem.dtype, device.target),
        two_sums=problem.block_shape is not None or problem.dtype is Dtype.INT8_W8A8,
    )


def _rescales(problem: FusedMoe) -> int:
    """How often a step scales or converts each accumulator."""
    if not problem.dtype.value.endswith("w8a8"):
        return 0
    # Every step converts int8's sums to fp32, for all kinds of scales.
    return (problem.block_shape is not None) + (problem.dtype is Dtype.INT8_W8A8)
