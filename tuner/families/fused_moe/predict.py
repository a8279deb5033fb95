"""Predict times with a model of the device, slightly corrected by known winners (`Prior`).

tuner/devices/tile_model.py has the model of a launch. Every token goes to `top_k` different
experts, each equally likely, so the tokens of an expert are Binomial(batch_size, top_k / E).
Expected values are sums over that distribution.

Every shipped entry votes for its value on each axis, with a weight that falls with the distance
between its problem and this problem. The votes become smoothed shares, so few files have little
influence and no files have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from tuner.devices.constants import Constants
from tuner.devices.table import Device, devices
from tuner.devices.target import Target
from tuner.devices.tile_model import (
    Footprint,
    GemmModel,
    Prediction,
    Product,
    RowBlocks,
    estimate_footprint,
)
from tuner.families.fused_moe.engine import ShippedFile
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of, sorted_slots, swaps_ab
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status
from tuner.tuning.seeds import WORST_EXCESS, Kernel, Need, cover

# The relative time that a unit of shortfall adds. The model's error is a factor of about 1.11 (one
# standard deviation), so the corpus decides only between configurations that the model cannot
# tell apart.
CORPUS_WEIGHT = 0.10
# A pair replaces the engine's if it is predicted to take this much less time. On three recordings
# of an H200, 5 % is the largest threshold that costs no gain over the engine's heuristic. Of the
# pairs of the ten fastest configurations that it replaces, 8 % are faster than the replacement (by
# 4.6 % at most); without a threshold, 15 % are.
CLEAR_GAIN = 0.05
MOST_SHORTFALL = 2.5  # values more than e**2.5 = 12 times rarer are not punished further


class Predictor:
    """A `Measurer` that predicts and runs nothing."""

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
        self._unmodelled = {name for name, _ in device.architecture.launch_options}
        self._footprints = lru_cache(maxsize=None)(partial(estimate, problem, device))
        self._estimates: dict[Point, dict[Config, float | None]] = {}

    def predict_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """Return the model's microseconds for a launch, without the corpus."""
        return self._model.predict(point, config, Footprint.of(compiled)).total_us

    def score_us(self, point: Point, config: Config, compiled: Compiled) -> float:
        """Return the microseconds to choose by: the model's time, increased for rare values."""
        return self._score(point, config, Footprint.of(compiled))

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """Return the score as `median_us`, and the model's time in `detail`."""
        if not compiled.ok:
            return Measurement(compiled.status, detail=compiled.detail)
        score = self.score_us(candidate.point, candidate.config, compiled)
        model = self.predict_us(candidate.point, candidate.config, compiled)
        return Measurement(
            Status.PREDICTED, median_us=score, detail=f"{model:.1f} us by the device model alone"
        )

    def shortlist(self, point: Point, configs: Iterable[Config], n: int) -> list[Config]:
        """Return the `n` best of configurations that are not compiled yet, best first.

        Footprints are estimates, so some of the configurations may not fit.
        """
        return _best(self.estimate_all(point, configs), n)

    def shortlist_both(
        self, configs: Mapping[Point, Iterable[Config]], n: int
    ) -> dict[Point, list[Config]]:
        """Return a `shortlist` by the sum of both gemms' times, at the points of the up gemm."""
        scores = {point: self.estimate_all(point, some) for point, some in configs.items()}
        return {point: _best(some, n) for point, some in summed(scores, Gemm.UP).items()}

    def shortlist_all(
        self, configs: Mapping[Point, Sequence[Config]], budget: int, *, one_config: bool = False
    ) -> dict[Point, list[Config]]:
        """Return at most `budget` distinct (gemm, config) pairs in all, by point and best first.

        Batch sizes share compiled kernels, so a point gets all configurations chosen for its gemm.
        Up and down of a batch size get choices with the same BLOCK_SIZE_M, which they must share,
        or with `one_config` the same configurations, for engines with one file for both gemms.
        There are second choices in case the first does not fit.
        """
        scores = {point: self.estimate_all(point, some) for point, some in configs.items()}
        gemms = {gemm_of(point) for point in scores}
        chosen: set[Kernel]
        if one_config:
            one = min(gemms)
            found = cover(needs(summed(scores, one)), budget // len(gemms))
            chosen = {(part, config) for _, config in found for part in gemms}
        else:
            chosen = set(cover(needs(scores), budget))
        return {
            point: sorted(
                (config for config in scored if (point.part, config) in chosen),
                key=lambda config: (scored[config], config.key),
            )
            for point, scored in scores.items()
        }

    def estimate_all(self, point: Point, configs: Iterable[Config]) -> dict[Config, float]:
        """Return scores by estimated footprint, for the configurations that will probably fit.

        A configuration with options of AMD's compiler has no score: the model does not know these
        options.
        """
        # Seeds and search ask for the same configurations.
        known = self._estimates.setdefault(point, {})
        scores = {}
        for config in configs:
            if config not in known:
                known[config] = self._estimate(point, config)
            score = known[config]
            if score is not None:
                scores[config] = score
        return scores

    def _estimate(self, point: Point, config: Config) -> float | None:
        if self._unmodelled & config.keys():
            return None
        footprint = self._footprints(config)
        fits = footprint.shared_bytes <= self._device.shared_optin_bytes
        return self._score(point, config, footprint) if fits else None

    def estimate_both(self, point: Point, configs: Iterable[Config]) -> dict[Config, float]:
        """Return the scores of `estimate_all` for the sum of both gemms at a batch size."""
        some = list(configs)
        both = [Point(point.batch_size, gemm) for gemm in Gemm]
        scores = {each: self.estimate_all(each, some) for each in both}
        return dict(summed(scores, gemm_of(point))[point])

    def _score(self, point: Point, config: Config, footprint: Footprint) -> float:
        shortfall = min(self._prior.shortfall(point, config), MOST_SHORTFALL)
        model_us = self._model.predict(point, config, footprint).total_us
        return model_us * math.exp(self._corpus_weight * shortfall)


def _best(scores: Mapping[Config, float], n: int) -> list[Config]:
    return sorted(scores, key=lambda config: (scores[config], config.key))[:n]


Scores = Mapping[Point, Mapping[Config, float]]

BLOCKS_EACH = 2  # values of BLOCK_SIZE_M that a batch size is offered


def summed(scores: Scores, gemm: Gemm) -> Scores:
    """Return the scores of the same configuration for all gemms of a batch size, at the points of
    `gemm`.
    """
    sums: dict[Point, dict[Config, float]] = {}
    for batch_size in {point.batch_size for point in scores}:
        parts = [scored for point, scored in scores.items() if point.batch_size == batch_size]
        sums[Point(batch_size, gemm)] = {
            config: sum(part[config] for part in parts)
            for config in parts[0]
            if all(config in part for part in parts)
        }
    return sums


def needs(scores: Scores) -> list[Need]:
    """Return every point's needs, for the values of BLOCK_SIZE_M that are best for both gemms
    together.

    An engine sorts a batch once for both gemms, so a pair must share its BLOCK_SIZE_M.
    """
    found: list[Need] = []
    for batch_size in sorted({point.batch_size for point in scores}):
        points = [point for point in scores if point.batch_size == batch_size]
        found += _needs_at({point: scores[point] for point in points})
    return found


def _needs_at(scores: Scores) -> Iterator[Need]:
    by_block = {point: _split(scored) for point, scored in scores.items()}
    shared = set.intersection(*(set(blocks) for blocks in by_block.values()))
    totals = {
        block: sum(min(blocks[block].values()) for blocks in by_block.values()) for block in shared
    }
    best = sorted(totals, key=lambda block: (totals[block], block))[:BLOCKS_EACH]
    for block in best:
        lag = math.log(totals[block] / totals[best[0]])
        for point, blocks in by_block.items():
            fastest = min(blocks[block].values())
            yield Need(
                point,
                max(0.0, 1 - lag / WORST_EXCESS),
                {config: math.log(score / fastest) for config, score in blocks[block].items()},
            )


def _split(scored: Mapping[Config, float]) -> dict[int, dict[Config, float]]:
    blocks: dict[int, dict[Config, float]] = {}
    for config, score in scored.items():
        blocks.setdefault(config["BLOCK_SIZE_M"], {})[config] = score
    return blocks


AXES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
SMOOTHING = 1.0  # initial votes of every value of an axis


class Prior:
    """Rates how common a configuration's values are among winners of similar problems."""

    def __init__(self, problem: FusedMoe, device: Device, files: Iterable[ShippedFile]) -> None:
        self._problem = problem
        target_of = {known.name: known.target for known in devices()}
        # Shipped files, and the similarity of each file's problem to the predicted problem.
        self._voters = [
            (file, weight)
            for file in files
            if file.entries and (weight := _likeness(problem, device, file, target_of))
        ]
        self._shares = lru_cache(maxsize=None)(self._count)

    def shortfall(self, point: Point, config: Config) -> float:
        """Return the mean over the axes of log(commonest value's share / share of this value).

        The mean is 0 if all values are the commonest, and larger for rarer values.
        """
        shares = self._shares(point)
        found = [of.get(config[axis], of[0]) for axis, of in shares.items()]
        return sum(found) / len(found)

    def _count(self, point: Point) -> dict[str, dict[int, float]]:
        """Return the shortfall of each value, by axis. The key 0 is for all values without
        votes.
        """
        votes: dict[str, dict[int, float]] = {axis: {} for axis in AXES}
        for file, likeness in self._voters:
            for batch_size, config in file.entries.items():
                weight = likeness * self._nearness(file, batch_size, point)
                for axis in AXES if weight > 1e-3 else ():
                    if axis in config:
                        votes[axis][config[axis]] = votes[axis].get(config[axis], 0.0) + weight
        return {axis: _shortfalls(counted) for axis, counted in votes.items()}

    def _nearness(self, file: ShippedFile, batch_size: int, point: Point) -> float:
        """Return the weight of an entry at a point, by its gemm and the octaves in tokens per
        expert.
        """
        wanted = point.batch_size / self._problem.E
        # A file without a `_down` file beside it was tuned for the sum of both gemms.
        same = 1.0 if file.key.gemm is gemm_of(point) else 0.5
        return same * _decayed(max(1, batch_size) / file.key.E, wanted)


@lru_cache(maxsize=4096)
def _decayed(there: float, wanted: float) -> float:
    """Return the share of a vote that is left after the octaves between two numbers of tokens per
    expert.
    """
    return math.exp(-abs(math.log2(there / wanted)))


def _shortfalls(votes: Mapping[int, float]) -> dict[int, float]:
    most = SMOOTHING + max(votes.values(), default=0.0)
    return {
        value: math.log(most / (SMOOTHING + count)) for value, count in {0: 0.0, **votes}.items()
    }


def _likeness(
    problem: FusedMoe, device: Device, file: ShippedFile, target_of: Mapping[str, Target]
) -> float:
    """Return the similarity of a shipped file to this problem and device, at most 1.

    Each difference makes the file's winners less likely to win here.
    """
    key = file.key
    if key.device not in target_of:
        return 0.0
    dtype = Dtype(key.dtype) if key.dtype else Dtype.BFLOAT16
    weight = 1.0
    if dtype is not problem.dtype:
        same_widths = (dtype.weight_bits, dtype.activation_bits) == (
            problem.dtype.weight_bits,
            problem.dtype.activation_bits,
        )
        weight *= 0.3 if same_widths else 0.1
    if key.block_shape != problem.block_shape:
        weight *= 0.3
    if key.device != device.name:
        weight *= 0.7 if target_of[key.device] == device.target else 0.3
    octaves = abs(math.log2(key.intermediate_size / problem.N))
    return weight * math.exp(-octaves / 2)


class DeviceModel:
    """Predicts launches of a layer on a device."""

    def __init__(
        self, device: Device, problem: FusedMoe, constants: Constants = Constants()
    ) -> None:
        self._device = device
        self._problem = problem
        self._model = GemmModel(device, problem.dtype, _rescales(problem), constants)
        self._product = lru_cache(maxsize=None)(self._launch)

    def predict(self, point: Point, config: Config, footprint: Footprint) -> Prediction:
        """Predict a launch at `point`."""
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
            load=expected_load(tokens, problem, block_m),
        )


def estimate(problem: FusedMoe, device: Device, config: Config) -> Footprint:
    """Return the resources that a layer's kernel will probably need; see `estimate_footprint`."""
    return estimate_footprint(
        problem.dtype,
        device,
        config,
        swap=swaps_ab(config, problem.dtype, device.target),
        two_sums=problem.block_shape is not None or problem.dtype is Dtype.INT8_W8A8,
    )


def _rescales(problem: FusedMoe) -> int:
    """Return how often a step scales or converts each accumulator."""
    if not problem.dtype.value.endswith("w8a8"):
        return 0
    # Every step converts int8's sums to fp32, for all kinds of scales.
    return (problem.block_shape is not None) + (problem.dtype is Dtype.INT8_W8A8)


@lru_cache(maxsize=4096)
def expected_load(batch_size: int, problem: FusedMoe, block_m: int) -> RowBlocks:
    """Return the load of a rank's `batch_size` tokens, sorted into blocks of `block_m` rows.

    Blocks that hold only slots of experts elsewhere count as empty.
    """
    counts = _binomial(batch_size, problem.routed_top_k / problem.all_routed)
    blocks = problem.routed * sum(p * math.ceil(count / block_m) for count, p in counts)
    blocks += problem.shared_experts * math.ceil(batch_size / block_m)
    experts = problem.shared_experts + problem.routed * sum(p for count, p in counts if count)
    launched = math.ceil(sorted_slots(batch_size * problem.top_k, problem.E, block_m) / block_m)
    rows = batch_size * problem.local_top_k
    return RowBlocks(experts, blocks, rows / blocks, max(0.0, launched - blocks))


@lru_cache(maxsize=256)
def _binomial(n: int, p: float) -> tuple[tuple[int, float], ...]:
    """Return (value, probability) of Binomial(n, p), within nine standard deviations of its
    mean.
    """
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
