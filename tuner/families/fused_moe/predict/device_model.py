"""Predict the microseconds of a fused-MoE kernel; docs/predict.md explains the model.

Every token goes to `top_k` different experts, each equally likely, so the tokens of one expert
are Binomial(batch_size, top_k / E). Expected values are sums over that distribution.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tuner.devices.constants import Constants
from tuner.devices.gemm import GemmModel, Prediction, Product, RowBlocks
from tuner.devices.occupancy import Footprint, estimate_footprint
from tuner.devices.table import Device
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of, sorted_slots, swaps_ab
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


@lru_cache(maxsize=4096)
def expected_load(batch_size: int, E: int, top_k: int, block_m: int) -> RowBlocks:
    """The load of `batch_size` tokens sorted into blocks of `block_m` rows."""
    counts = _binomial(batch_size, top_k / E)
    blocks = E * sum(p * math.ceil(count / block_m) for count, p in counts)
    experts = E * sum(p for count, p in counts if count)
    routed = batch_size * top_k
    launched = math.ceil(sorted_slots(routed, E, block_m) / block_m)
    return RowBlocks(experts, blocks, routed / blocks, max(0.0, launched - blocks))


@lru_cache(maxsize=256)
def _binomial(n: int, p: float) -> tuple[tuple[int, float], ...]:
    """(value, probability) of Binomial(n, p), within nine standard deviations of its mean."""
    if p >= 1:
        return ((n, 1.0),)
    reach = 9 * math.sqrt(n * p * (1 - p)) + 9
    first, last = max(0, int(n * p - reach)), min(n, int(n * p + reach))
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    return tuple(
        (
            k,
            math.exp(
                log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_p + (n - k) * log_q
            ),
        )
        for k in range(first, last + 1)
    )
