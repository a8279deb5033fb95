"""The configurations of a state update that are legal, and their microseconds by a model.

The model was never held against measured times, only against the winners that vLLM ships:
docs/engines.md says how it did. Its constants are those of the other models.
"""

from __future__ import annotations

import math

from tuner.devices.constants import Constants
from tuner.devices.table import Device
from tuner.devices.tile_model import Footprint, blocks_per_sm, rounds_of_work
from tuner.families.state_update.problem import StateUpdate
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status
from tuner.tuning.space import Rule, Space

# The values in the files that vLLM 0.33.0 ships, and the next larger block.
_BLOCKS = (4, 8, 16, 32, 64, 128)
_WARPS = (1, 2, 4, 8)
_MOST_STATES = 256  # of a thread; shipped entries for CUDA have at most 128, and for AMD 256


def state_space(problem: StateUpdate, device: Device) -> Space:
    """The space of a problem, for all numbers of sequences: at most 24 configurations."""
    width = padded(problem.head_dim)
    columns = padded(problem.state_size)
    warp = device.target.warp_size
    rules = (
        Rule(
            "a block has no more rows than a head",
            "the grid has a block for each BLOCK_SIZE_M rows of a head, and masks the others",
            lambda c: c["BLOCK_SIZE_M"] <= max(_BLOCKS[0], width),
        ),
        Rule(
            f"at most {_MOST_STATES} states a thread",
            "a thread keeps its states in registers; no shipped entry has more",
            lambda c: c["BLOCK_SIZE_M"] * columns <= _MOST_STATES * warp * c["num_warps"],
        ),
    )
    return Space({"BLOCK_SIZE_M": _BLOCKS, "num_warps": _WARPS}, rules)


def padded(n: int) -> int:
    """The next power of two, as the kernel pads head_dim and the state size."""
    return 1 << (n - 1).bit_length()


# A configuration replaces the engine's if it is predicted to take this much less time. The model
# holds some winners that vLLM ships to be up to 1.36 times slower than its own best; with this
# margin it would replace none of the 210 entries of 0.33.0.
CLEAR_GAIN = 0.3
_STATE_INSTRUCTIONS = 8.0  # of a thread for each of its states: convert, multiply-adds, addresses
_ROW_INSTRUCTIONS = 12.0  # of a warp for each row: five steps of a sum over its lanes, and loads
_ACTIVATION_BYTES = 2


class StatePredictor:
    """A `Measurer` that predicts and runs nothing."""

    def __init__(
        self, device: Device, problem: StateUpdate, constants: Constants = Constants()
    ) -> None:
        self._device, self._problem, self._constants = device, problem, constants

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """The model's time as `median_us`."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        us = self.predict_us(candidate.point, candidate.config, compiled)
        return Measurement(Status.PREDICTED, us, detail="by a model that was never measured")

    def predict_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """The model's microseconds of a launch.

        Each block loads the slot's number, then its rows of the states, and writes them back.
        """
        c, arch = self._constants, self._device.architecture
        footprint = Footprint.of(compiled)
        blocks = self._blocks(point, config)
        per_sm = blocks / self._device.sm_count
        resident = blocks_per_sm(self._device, config["num_warps"], footprint)
        issue = max(1.0, config["num_warps"] / 4) * self._instructions(config)
        spilt = 2.0 * footprint.n_spills * config["num_warps"] * arch.target.warp_size
        spilt /= c.spill_bytes_per_clock
        chain_ns = c.start_ns + 2 * c.dram_latency_ns + c.end_ns
        chain_ns += (issue + spilt) / arch.clock_ghz
        latency_us = rounds_of_work(per_sm / resident) * chain_ns / 1e3
        busy = max(self._instructions(config) * config["num_warps"] / 4, self._l2_clocks(config))
        sm_us = rounds_of_work(per_sm) * (busy + spilt) / arch.clock_ghz / 1e3
        dram_us = self._dram_bytes(point) / self._device.bandwidth_gbs / 1e3 / c.dram_efficiency
        together = sum(t**c.norm for t in (latency_us, sm_us, dram_us)) ** (1 / c.norm)
        return float(c.launch_us + together)

    def _blocks(self, point: Point, config: Config) -> int:
        problem = self._problem
        rows = math.ceil(problem.head_dim / config["BLOCK_SIZE_M"])
        return rows * point.batch_size * problem.heads

    def _instructions(self, config: Config) -> float:
        """Instructions of one warp of a block."""
        rows, columns = config["BLOCK_SIZE_M"], padded(self._problem.state_size)
        lanes = self._device.target.warp_size * config["num_warps"]
        states = max(1.0, rows * columns / lanes)
        alone = max(1.0, rows / config["num_warps"])
        return (
            self._constants.step_instructions
            + _STATE_INSTRUCTIONS * states
            + _ROW_INSTRUCTIONS * alone
        )

    def _l2_clocks(self, config: Config) -> float:
        """Clocks in which an SM gets a block's states and what is beside them."""
        problem = self._problem
        share = config["BLOCK_SIZE_M"] / problem.head_dim / problem.heads
        beside = 2 * problem.state_size * _ACTIVATION_BYTES  # B and C
        each = 2 * problem.state_bytes * share + beside
        return each / self._device.architecture.l2_bytes_per_clock

    def _dram_bytes(self, point: Point) -> float:
        """Bytes of the states, which are read and written, and of a sequence's activations."""
        problem = self._problem
        inner = problem.heads * problem.head_dim
        activations = 2 * inner + 2 * problem.groups * problem.state_size + problem.heads
        each = 2 * problem.state_bytes + activations * _ACTIVATION_BYTES
        return float(each * point.batch_size)
