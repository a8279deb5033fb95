"""Predict the microseconds of attention's kernels, with margins for the model's error.

docs/predict.md explains the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

from tuner.devices.table import Device
from tuner.devices.tile_model import Footprint, blocks_per_sm
from tuner.families.attention.predict.steps import (
    ELEMENT_BYTES,
    AttentionConstants,
    BlockRow,
    Steps,
    TileCost,
    Tiles,
    count,
    launched,
    makespan,
    split_lengths,
)
from tuner.families.attention.problem import Attention, AttentionPhase, Stage
from tuner.families.attention.splits import BOTH, ragged
from tuner.families.attention.splits import launched as launched_problem
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


@dataclass(frozen=True)
class AttentionPrediction:
    """The predicted microseconds of one launch, and their parts."""

    total_us: float
    blocks_us: float  # until the last block is done
    dram_us: float
    blocks: int  # blocks with work
    blocks_per_sm: int


class AttentionModel:
    """Predicts launches of one problem on one device. `seed` determines the ragged lengths."""

    def __init__(
        self,
        device: Device,
        problem: Attention,
        constants: AttentionConstants = AttentionConstants(),
        seed: int = 0,
    ) -> None:
        self._device, self._problem = device, problem
        self._constants = constants
        self._arch = device.architecture
        self._lengths = lru_cache(maxsize=None)(partial(ragged, problem, seed=seed))
        self._launched = lru_cache(maxsize=None)(self._launch)

    def predict(self, point: Point, config: Config, footprint: Footprint) -> AttentionPrediction:
        """Predict one launch of the point's stage."""
        resident = blocks_per_sm(self._device, config["num_warps"], footprint)
        if point.part is Stage.REDUCE:
            rows, clocks = self._reduce(point, config, resident)
            dram_bytes = self._split_bytes(rows)
        else:
            rows = self._launched(point, _blocks_alone(config))
            clocks = self._tiled(rows, point, config, footprint, resident)
            dram_bytes = self._key_bytes(point) + self._query_bytes(point)
        c = self._constants.common
        blocks_us = clocks / self._arch.clock_ghz / 1e3
        dram_us = dram_bytes / self._device.bandwidth_gbs / 1e3 / c.dram_efficiency
        together = (blocks_us**c.norm + dram_us**c.norm) ** (1 / c.norm)
        total_us = c.launch_us + together
        return AttentionPrediction(total_us, blocks_us, dram_us, count(rows), resident)

    def _launch(self, point: Point, config: Config) -> list[BlockRow]:
        lengths, cores = self._lengths(point), self._device.sm_count
        return launched(self._problem, point, config, lengths, cores)

    def _tiled(
        self,
        rows: list[BlockRow],
        point: Point,
        config: Config,
        footprint: Footprint,
        resident: int,
    ) -> float:
        """Clocks until the last block is done."""
        assert isinstance(point.part, Stage)  # the problem is attention
        steps = Steps(self._device, self._problem, point.part, config, self._constants)
        together = min(resident, math.ceil(count(rows) / self._device.sm_count))
        latency = self._latency(rows, point, config)
        cached, new = (steps.step(footprint, latency, cached=cached) for cached in (True, False))
        cached_step, new_step = (self._sharing(step, together) for step in (cached, new))
        skip = steps.skip_clocks(together)
        ends = self._ends()

        def of(tiles: Tiles) -> float:
            lead = cached.lead * (tiles.cached > 0) + new.lead * (tiles.new > 0)
            loops = tiles.cached * cached_step + tiles.new * new_step + tiles.skipped * skip
            return ends + lead + loops

        return makespan(rows, self._device.sm_count * resident, of)

    def _sharing(self, step: TileCost, together: int) -> float:
        """Clocks of a step if `together` blocks share an SM."""
        norm = self._constants.common.norm
        limit = together * max(step.busy, step.fill)
        return float((step.chain**norm + limit**norm) ** (1 / norm))

    def _reduce(self, point: Point, config: Config, resident: int) -> tuple[list[BlockRow], float]:
        """The blocks of the reduction, with splits as tiles, and clocks until the last is done."""
        c, problem, cores = self._constants, self._problem, self._device.sm_count
        lengths = self._lengths(point)
        each = split_lengths(problem, config, lengths, cores)
        full = [-(-n // length) for n, length in zip(lengths.cached, each, strict=True)]
        room = launched_problem(problem, config)[0].most_splits
        tiles = tuple(Tiles(cached=n, skipped=room - n) for n in full)
        rows = [BlockRow(tiles, problem.q_heads)]
        together = min(resident, math.ceil(count(rows) / cores))
        empty = c.empty_instructions * max(1.0, together * config["num_warps"] / 4)
        ends, split = self._ends(), max(c.split_clocks, empty)

        def of(tiles: Tiles) -> float:
            return ends + tiles.cached * split + tiles.skipped * empty

        return rows, makespan(rows, cores * resident, of)

    def _ends(self) -> float:
        """Clocks of a block before its first step and after its last step."""
        c = self._constants.common
        return (c.start_ns + c.end_ns) * self._arch.clock_ghz

    def _latency(self, rows: list[BlockRow], point: Point, config: Config) -> float:
        """Average clocks until a tile's first bytes arrive: first from memory, later from L2."""
        c = self._constants.common
        tiles = sum(row.heads * (t.cached + t.new) for row in rows for t in row.tiles)
        asked = tiles * config["BLOCK_N"] * self._token_bytes()
        first = min(1.0, self._key_bytes(point) / asked)
        ns = c.l2_latency_ns + first * (c.dram_latency_ns - c.l2_latency_ns)
        return ns * self._arch.clock_ghz

    def _token_bytes(self) -> int:
        """Bytes of one head's key and value in the cache. A latent value is part of its key."""
        problem = self._problem
        return (problem.Lq + (0 if problem.shares_kv else problem.Lv)) * ELEMENT_BYTES

    def _key_bytes(self, point: Point) -> float:
        """Bytes of all keys and values."""
        problem, lengths = self._problem, self._lengths(point)
        found = sum(lengths.cached) * self._token_bytes()
        if problem.phase is not AttentionPhase.DECODE:
            found += sum(lengths.new) * (problem.Lq + problem.Lv) * ELEMENT_BYTES
        return float(found * problem.kv_heads)

    def _query_bytes(self, point: Point) -> float:
        """Bytes of all queries and outputs."""
        problem = self._problem
        rows = sum(self._lengths(point).new) * problem.q_heads
        return float(rows * (problem.Lq + problem.Lv) * ELEMENT_BYTES)

    def _split_bytes(self, rows: list[BlockRow]) -> float:
        """Bytes of all splits' results, which are float32."""
        return float(
            sum(row.heads * t.cached for row in rows for t in row.tiles) * self._problem.Lv * 4
        )


def _blocks_alone(config: Config) -> Config:
    """The constants that determine a launch's blocks. The others only affect their time."""
    kept = {name: n for name, n in config.items() if name.startswith("BLOCK_") or name in BOTH}
    return Config(kept)
