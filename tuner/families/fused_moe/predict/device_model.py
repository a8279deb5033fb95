"""Predict the microseconds of a fused-MoE kernel; docs/predict.md explains the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

from tuner.devices.constants import Constants
from tuner.devices.occupancy import Footprint, blocks_per_sm
from tuner.devices.table import Device
from tuner.families.fused_moe.predict.padding import ExpertLoad, expected_load
from tuner.families.fused_moe.predict.tensor_cores import tensor_step
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

CACHE_LINE_BYTES = 128
DRAM_PAGE_BYTES = 1024


@dataclass(frozen=True)
class Prediction:
    """The predicted microseconds of one launch, and their parts."""

    total_us: float
    latency_us: float  # of waves of blocks, each a chain of dependent loads and steps
    sm_us: float  # of an SM's busiest unit
    dram_us: float
    empty_us: float  # of blocks without rows
    blocks_per_sm: int


class DeviceModel:
    """Predicts launches of one problem on one device."""

    def __init__(
        self, device: Device, problem: FusedMoe, constants: Constants = Constants()
    ) -> None:
        self._device = device
        self._problem = problem
        self._constants = constants
        self._arch = device.architecture
        self._a_bytes = problem.dtype.activation_bits / 8
        self._b_bytes = problem.dtype.weight_bits / 8
        self._tensor_step = lru_cache(maxsize=None)(partial(tensor_step, problem, device))

    def predict(self, point: Point, config: Config, footprint: Footprint) -> Prediction:
        """Predict one launch at `point`."""
        c, device, problem = self._constants, self._device, self._problem
        columns, reduced = problem.gemm_shape(gemm_of(point))
        load = expected_load(point.batch_size, problem.E, problem.top_k, config["BLOCK_SIZE_M"])
        tiles_n = math.ceil(columns / config["BLOCK_SIZE_N"])
        steps = math.ceil(reduced / config["BLOCK_SIZE_K"])
        resident = blocks_per_sm(device, config["num_warps"], footprint)
        per_sm = load.blocks * tiles_n / device.sm_count
        serial, busy = self._step_clocks(load, config, footprint)
        end_clocks = load.rows * config["BLOCK_SIZE_N"] * 2 / self._arch.l2_bytes_per_clock
        chain_ns = self._chain_ns(load, config, steps, serial / self._arch.clock_ghz)
        latency_us = _rounds(per_sm / resident) * chain_ns / 1e3
        sm_us = _rounds(per_sm) * (steps * busy + end_clocks) / self._arch.clock_ghz / 1e3
        dram_us = self._dram_us(point, load, config)
        together = sum(t**c.norm for t in (latency_us, sm_us, dram_us)) ** (1 / c.norm)
        empty = load.empty_blocks * tiles_n / device.sm_count / resident
        empty_us = empty * c.empty_ns / 1e3
        return Prediction(
            c.launch_us + together + empty_us, latency_us, sm_us, dram_us, empty_us, resident
        )

    def _step_clocks(
        self, load: ExpertLoad, config: Config, footprint: Footprint
    ) -> tuple[float, float]:
        """Clocks of a step along k, for one block alone and for its SM's busiest unit."""
        c, warps = self._constants, config["num_warps"]
        depth, threads = config["BLOCK_SIZE_K"], self._arch.target.warp_size * warps
        a, b = self._a_bytes * depth, self._b_bytes * config["BLOCK_SIZE_N"] * depth
        step = self._tensor_step(config)
        copied = config["BLOCK_SIZE_M"] * a + b
        shared = (copied + step.shared_read_bytes) / c.shared_bytes_per_clock
        instructions = c.step_instructions + c.copy_instructions * copied / 16 / threads
        accumulators = config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] / threads
        instructions += accumulators * self._accumulator_instructions()
        # Each of an SM's four schedulers issues one warp's instruction per clock.
        issue = max(1.0, warps / 4) * instructions + step.converted / c.converted_per_clock
        spilt = 2 * footprint.n_spills * threads / c.spill_bytes_per_clock
        l2 = (load.rows * a + b) / self._arch.l2_bytes_per_clock
        mma, read = step.mac_clocks / c.mma_efficiency, step.shared_read_bytes
        alone = c.step_clocks + max(mma, read / c.shared_bytes_per_clock) + issue + spilt
        return alone, max(mma, shared, issue, l2) + spilt

    def _accumulator_instructions(self) -> float:
        c, problem = self._constants, self._problem
        if not problem.dtype.value.endswith("w8a8"):
            return 0.0
        # Every step converts int8's sums to fp32, for all kinds of scales.
        converts = problem.dtype is Dtype.INT8_W8A8
        rescales = problem.block_shape is not None
        return c.rescale_instructions * rescales + c.rescale_instructions * converts

    def _chain_ns(self, load: ExpertLoad, config: Config, steps: int, step_ns: float) -> float:
        """Nanoseconds of one block, from its launch to its stores.

        A step's tile is requested at the end of the step `depth` before it. So `depth` steps take
        either a latency and a step, or the sum of their times, whichever is longer.
        """
        c, depth = self._constants, max(1, config["num_stages"] - 1)
        # An expert's first block reads its weights from memory, the others read them from L2.
        first = min(1.0, load.experts / load.blocks)
        latency = c.l2_latency_ns + first * (c.dram_latency_ns - c.l2_latency_ns)
        rounds, last = divmod(steps - 1, depth)
        loop = rounds * max(latency + step_ns, depth * step_ns) + (last + 1) * step_ns
        return c.start_ns + latency + loop + c.end_ns

    def _dram_us(self, point: Point, load: ExpertLoad, config: Config) -> float:
        c, device, problem = self._constants, self._device, self._problem
        columns, reduced = problem.gemm_shape(gemm_of(point))
        routed = point.batch_size * problem.top_k
        weights = columns * reduced * self._b_bytes  # bytes of one expert
        b = self._refetched(load, config, weights) * weights
        a = self._activation_bytes(point, load, config, columns, reduced)
        b_us, rest_us = (n / device.bandwidth_gbs / 1e3 for n in (b, a + routed * columns * 2))
        piece = config["BLOCK_SIZE_K"] * self._b_bytes
        efficiency = c.dram_efficiency
        if piece < CACHE_LINE_BYTES and reduced * self._b_bytes > DRAM_PAGE_BYTES:
            b_us /= c.short_row ** math.log2(CACHE_LINE_BYTES / piece)
        return (b_us + rest_us) / efficiency

    def _refetched(self, load: ExpertLoad, config: Config, weights: float) -> float:
        """How often an expert's weights are read from memory, summed over the experts.

        Blocks of one expert in the same group share its weights. Between groups all of the
        expert's weights pass through L2, which may lose them.
        """
        each = load.blocks / load.experts  # blocks per expert
        apart = math.ceil(each / config["GROUP_SIZE_M"]) if each > 1 else 1
        lost = max(0.0, 1 - self._device.l2_bytes / weights)
        return load.experts * (1 + (apart - 1) * lost)

    def _activation_bytes(
        self, point: Point, load: ExpertLoad, config: Config, columns: int, reduced: int
    ) -> float:
        """Bytes of A that are read from memory: once, and again for each column of tiles if a
        group's rows and its weights do not stay in L2.
        """
        group = min(config["GROUP_SIZE_M"], load.blocks)
        row = reduced * self._a_bytes
        experts = max(1.0, group * load.experts / load.blocks)
        beside = group * load.rows * row
        beside += experts * config["BLOCK_SIZE_N"] * reduced * self._b_bytes
        lost = max(0.0, 1 - self._device.l2_bytes / beside)
        routed = point.batch_size * self._problem.top_k
        kept = gemm_of(point) is Gemm.UP and point.batch_size * row <= self._device.l2_bytes
        once = point.batch_size if kept else routed
        passes = math.ceil(columns / config["BLOCK_SIZE_N"]) - 1
        return once * row + routed * row * passes * lost


def _rounds(share: float) -> float:
    """Rounds of work. If there are several, the last is half full on average."""
    return share + 0.5 if share > 1 else 1.0
