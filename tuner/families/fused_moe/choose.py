"""Choose the entry of every point from a fused-MoE layer's trials.

Up and down are tuned separately but chosen together: an engine sorts a batch's tokens once, in
blocks of BLOCK_SIZE_M, and runs both gemms on that order, so a pair must share its BLOCK_SIZE_M.
A pair replaces the incumbent (what the engine would run anyway) only if it is faster by more
than the noise. Every batch size gets an entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.errors import NothingFits
from tuner.families.fused_moe.problem import Gemm, gemm_of
from tuner.problems.points import Config, Point
from tuner.problems.results import Entry, Incumbent, Status, Trial

Choice = dict[Gemm, Config]

FINAL_BLOCKS = 2  # values of BLOCK_SIZE_M in the final
FINALISTS = 3  # configurations per gemm and BLOCK_SIZE_M


@dataclass(frozen=True)
class Policy:
    """When a faster time counts."""

    noise: float  # relative; a smaller gain over the incumbent does not count
    tie: float | None = None  # relative: times this near count as equal; None: `noise`
    one_config: bool = False  # the engine has one file for both gemms
    trust_shipped: bool = False  # times are predictions, which must not replace a shipped file

    def beats(self, time_us: float, incumbent_us: float) -> bool:
        """Whether a time is below the incumbent's by more than the noise."""
        return time_us < incumbent_us * (1 - self.noise)

    def ties(self, time_us: float, best_us: float, incumbent_us: float | None) -> bool:
        """Whether a time counts as equal to the best time, and also beats the incumbent."""
        tie = self.noise if self.tie is None else self.tie
        equal = time_us <= best_us * (1 + tie)
        return equal and (incumbent_us is None or self.beats(time_us, incumbent_us))


@dataclass(frozen=True)
class _SizeTrials:
    """One batch size's trials by gemm and configuration, and its incumbents."""

    batch_size: int
    trials: Mapping[Gemm, Mapping[Config, Trial]]
    incumbents: Mapping[str, Mapping[Gemm, Config]]  # "default", "shipped"
    block: int | None = None  # the BLOCK_SIZE_M of the other gemm, if it is not tuned now

    @property
    def predicted(self) -> bool:
        trials = (trial for some in self.trials.values() for trial in some.values())
        return any(trial.measurement.status is Status.PREDICTED for trial in trials)

    def total_us(self, choice: Choice) -> float | None:
        """Microseconds of both gemms, or None if one has no time or a BLOCK_SIZE_M other than
        `block`.
        """
        total = 0.0
        for gemm, config in choice.items():
            if self.block not in (None, config["BLOCK_SIZE_M"]):
                return None
            trial = self.trials[gemm].get(config)
            if trial is None or trial.measurement.median_us is None:
                return None
            total += trial.measurement.median_us
        return total


@dataclass(frozen=True)
class MoeChooser:
    """`choose` and `finalists` for one run."""

    incumbents: Mapping[Point, Mapping[str, Config]]
    policy: Policy
    requested: Collection[int]  # batch sizes
    # By batch size, the BLOCK_SIZE_M of a gemm that is not tuned now. The other gemm must share it.
    blocks: Mapping[int, int] | None = None

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        return choose(trials, self.incumbents, self.policy, self.requested, self.blocks)

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        return finalists(
            trials, self.incumbents, entries, self.requested, self.blocks, self.policy.one_config
        )


def choose(
    trials: Sequence[Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    policy: Policy,
    requested: Collection[int],
    blocks: Mapping[int, int] | None = None,
) -> list[Entry]:
    """One entry for each point that `incumbents` names, in order of batch size.

    `requested` are the batch sizes that were tuned. All other sizes get the engine's
    configuration, or the nearest tuned pair if that does not fit. They need an entry because with
    a file the engine no longer uses its heuristic.

    `blocks`: by batch size, the BLOCK_SIZE_M of a gemm that is not tuned now and must be shared.

    Raises NothingFits, which names the batch size, if no candidate of a requested size has a time.
    """
    fields = list(_trials_by_size(trials, incumbents, blocks))
    entries: list[Entry] = []
    choices: dict[int, Choice] = {}
    neighbour: Choice | None = None
    for field in fields:
        if field.batch_size in requested:
            neighbour, reason = _choose_at(field, policy, neighbour)
            choices[field.batch_size] = neighbour
            entries += _entries(field, neighbour, reason)
    for field in fields:
        if field.batch_size not in requested:
            entries += _untuned(field, choices, entries)
    return sorted(entries, key=lambda entry: entry.point)


def finalists(
    trials: Sequence[Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    entries: Sequence[Entry],
    requested: Collection[int],
    blocks: Mapping[int, int] | None = None,
    one_config: bool = False,
) -> list[Trial]:
    """The trials worth timing again. At each requested point these are the incumbents, the choices
    there and at the neighbouring batch sizes, and the fastest with the two best BLOCK_SIZE_M.

    `one_config`: the fastest in the sum of both gemms.
    """
    found: list[Trial] = []
    sizes = sorted(requested)
    chosen = {entry.point: entry.config for entry in entries}
    for field in _trials_by_size(trials, incumbents, blocks):
        if field.batch_size not in requested:
            continue
        at = sizes.index(field.batch_size)
        near = sizes[max(at - 1, 0) : at + 2]
        best = _best_together(field) if one_config else _best_of_blocks(field)
        for gemm, timed in field.trials.items():
            wanted = {pair[gemm] for pair in field.incumbents.values()}
            wanted.update(chosen[Point(size, gemm)] for size in near)
            wanted.update(best[gemm])
            some = [timed[config] for config in sorted(wanted) if config in timed]
            found += [trial for trial in some if trial.measurement.timed]
    return found


def _best_together(field: _SizeTrials) -> Mapping[Gemm, Sequence[Config]]:
    """The fastest configurations of both gemms."""
    totals = [(field.total_us(choice), choice) for choice in _choices(field, one_config=True)]
    timed = [(total, choice) for total, choice in totals if total is not None]
    timed.sort(key=lambda item: (item[0], next(iter(item[1].values())).key))
    best = timed[: FINAL_BLOCKS * FINALISTS]
    return {gemm: [choice[gemm] for _, choice in best] for gemm in field.trials}


def _best_of_blocks(field: _SizeTrials) -> Mapping[Gemm, Sequence[Config]]:
    """Each gemm's fastest configurations with the best values of BLOCK_SIZE_M."""
    best = _best_blocks(field)
    return {
        gemm: [config for block in best for config in _fastest_of(timed, block)]
        for gemm, timed in field.trials.items()
    }


def _best_blocks(field: _SizeTrials) -> list[int]:
    totals: dict[int, float] = {}
    for choice in _choices(field, one_config=False):
        total = field.total_us(choice)
        if total is not None:
            totals[next(iter(choice.values()))["BLOCK_SIZE_M"]] = total
    return sorted(totals, key=lambda block: totals[block])[:FINAL_BLOCKS]


def _fastest_of(timed: Mapping[Config, Trial], block: int) -> list[Config]:
    same = [item for item in timed.items() if item[0]["BLOCK_SIZE_M"] == block]
    return [config for config, _ in sorted(same, key=_time_then_key)[:FINALISTS]]


def _untuned(
    field: _SizeTrials, choices: Mapping[int, Choice], tuned: list[Entry]
) -> Iterator[Entry]:
    name, incumbent = _incumbent(field)
    trials = {gemm: field.trials[gemm].get(config) for gemm, config in (incumbent or {}).items()}
    if incumbent and all(trial is not None and trial.compiled.ok for trial in trials.values()):
        for gemm, trial in trials.items():
            assert trial is not None  # checked above
            yield Entry(
                point=Point(field.batch_size, gemm),
                config=incumbent[gemm],
                status=Status.INCUMBENT,
                median_us=None,
                compiled=trial.compiled,
                incumbents={},
                reason=f"not tuned: the {name} configuration stands",
            )
        return
    nearest = min(choices, key=lambda batch_size: abs(batch_size - field.batch_size))
    for entry in tuned:
        if entry.point.batch_size == nearest:
            yield replace(
                entry,
                point=Point(field.batch_size, gemm_of(entry.point)),
                status=Status.INCUMBENT,
                median_us=None,
                incumbents={},
                reason=f"not tuned: the {name} configuration cannot run here; as at M={nearest}",
            )


def _trials_by_size(
    trials: Sequence[Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    blocks: Mapping[int, int] | None,
) -> Iterator[_SizeTrials]:
    timed: dict[Point, dict[Config, Trial]] = {point: {} for point in incumbents}
    for trial in trials:
        if trial.candidate.point in timed:
            timed[trial.candidate.point][trial.candidate.config] = trial
    for batch_size in sorted({point.batch_size for point in incumbents}):
        points = sorted(point for point in incumbents if point.batch_size == batch_size)
        names = {name for point in points for name in incumbents[point]}
        yield _SizeTrials(
            batch_size,
            {gemm_of(point): timed[point] for point in points},
            {
                name: {gemm_of(point): incumbents[point][name] for point in points}
                for name in names
                if all(name in incumbents[point] for point in points)
            },
            (blocks or {}).get(batch_size),
        )


def _choose_at(field: _SizeTrials, policy: Policy, neighbour: Choice | None) -> tuple[Choice, str]:
    best = _fastest(field, policy.one_config)
    name, incumbent = _incumbent(field)
    incumbent_us = field.total_us(incumbent) if incumbent else None
    if best is None:
        raise NothingFits(_why_nothing_fits(field))
    best_us = field.total_us(best)
    assert best_us is not None  # _fastest returns timed pairs only
    if incumbent is not None and incumbent_us is not None:
        if policy.trust_shipped and name == "shipped":
            return incumbent, "the engine ships a file tuned on this card; a prediction keeps it"
        if not policy.beats(best_us, incumbent_us):
            return incumbent, _kept(name, field.predicted)
    # Among equal times a run would choose by its noise, and the next run otherwise.
    light = _lightest(field, best, policy, incumbent_us)
    # Fewer distinct kernels make a server start faster, so a tie goes to the neighbour's pair.
    if neighbour is not None:
        neighbour_us = field.total_us(neighbour)
        if neighbour_us is not None and policy.ties(neighbour_us, best_us, incumbent_us):
            light = neighbour
    best, best_us = light, field.total_us(light)
    assert best_us is not None  # it ties with one that is timed
    if incumbent_us is None:
        return best, _why_replaced(field, name) if incumbent else "fastest"
    gain = f"{incumbent_us / best_us:.3f}x as fast as the {name} configuration"
    return best, f"predicted {gain}" if field.predicted else gain


def _why_nothing_fits(field: _SizeTrials) -> str:
    why = f"no configuration compiles and fits at batch size {field.batch_size}"
    if field.block is None:
        return why
    return f"{why} with the other gemm's BLOCK_SIZE_M={field.block}: tune both gemms together"


def _why_replaced(field: _SizeTrials, name: str) -> str:
    pair = field.incumbents[name].values()
    if field.block is not None and any(c["BLOCK_SIZE_M"] != field.block for c in pair):
        return f"fastest with BLOCK_SIZE_M={field.block}, which the other gemm has"
    return f"the {name} configuration cannot run here"


def _kept(name: str, predicted: bool) -> str:
    if predicted:
        return f"nothing is predicted to be clearly faster than the {name} configuration"
    return f"the {name} configuration is as fast, within the noise"


def _incumbent(field: _SizeTrials) -> tuple[str, Choice | None]:
    """What the engine would run: its file's entry if it finds one, else its heuristic's."""
    for name in ("shipped", "default"):
        if name in field.incumbents:
            return name, dict(field.incumbents[name])
    return "default", None


def _fastest(field: _SizeTrials, one_config: bool) -> Choice | None:
    best: tuple[float, Choice] | None = None
    for choice in _choices(field, one_config):
        total = field.total_us(choice)
        if total is not None and (best is None or total < best[0]):
            best = total, choice
    return best[1] if best else None


def _lightest(
    field: _SizeTrials, best: Choice, policy: Policy, incumbent_us: float | None
) -> Choice:
    """The pair with the least shared memory, stages and warps whose time counts as equal."""
    best_us = field.total_us(best)
    assert best_us is not None
    if policy.one_config:
        pairs = list(_choices(field, one_config=True))
    else:
        rivals = [_rivals(field.trials[gemm], config, policy) for gemm, config in best.items()]
        pairs = [dict(zip(best, pair, strict=True)) for pair in itertools.product(*rivals)]
    timed = ((pair, field.total_us(pair)) for pair in pairs)
    equal = [p for p, us in timed if us is not None and policy.ties(us, best_us, incumbent_us)]
    return min(equal, key=lambda pair: _weight(field, pair), default=best)


def _rivals(timed: Mapping[Config, Trial], best: Config, policy: Policy) -> list[Config]:
    """The configurations of one gemm that may replace `best` beside the other gemm's."""
    best_us = timed[best].measurement.median_us
    assert best_us is not None
    times = {config: trial.measurement.median_us for config, trial in timed.items()}
    return [
        config
        for config, us in times.items()
        if config["BLOCK_SIZE_M"] == best["BLOCK_SIZE_M"]
        and us is not None
        and policy.ties(us, best_us, None)
    ]


def _weight(field: _SizeTrials, choice: Choice) -> tuple[int, int, int, list[str]]:
    trials = [field.trials[gemm][config] for gemm, config in choice.items()]
    return (
        sum(trial.compiled.shared_bytes or 0 for trial in trials),
        sum(config.get("num_stages", 0) for config in choice.values()),
        sum(config.get("num_warps", 0) for config in choice.values()),
        [config.key for config in choice.values()],
    )


def _choices(field: _SizeTrials, one_config: bool) -> Iterator[Choice]:
    """The pairs worth comparing: for every BLOCK_SIZE_M, the fastest of each gemm."""
    gemms = sorted(field.trials)
    if one_config:
        for config in field.trials[gemms[0]]:
            yield dict.fromkeys(gemms, config)
        return
    by_block: dict[int, Choice] = {}
    for gemm in gemms:
        for config, trial in sorted(field.trials[gemm].items(), key=_time_then_key):
            if trial.measurement.timed:
                by_block.setdefault(config["BLOCK_SIZE_M"], {}).setdefault(gemm, config)
    yield from (choice for choice in by_block.values() if len(choice) == len(gemms))


def _time_then_key(item: tuple[Config, Trial]) -> tuple[float, str]:
    median_us = item[1].measurement.median_us
    return (float("inf") if median_us is None else median_us, item[0].key)


def _entries(field: _SizeTrials, choice: Choice, reason: str) -> Iterator[Entry]:
    for gemm, config in sorted(choice.items()):
        trial = field.trials[gemm][config]
        assert trial.measurement.median_us is not None  # chosen pairs are timed
        yield Entry(
            point=Point(field.batch_size, gemm),
            config=config,
            status=trial.measurement.status,
            median_us=trial.measurement.median_us,
            compiled=trial.compiled,
            incumbents={
                name: _as_incumbent(field.trials[gemm].get(pair[gemm]), pair[gemm])
                for name, pair in sorted(field.incumbents.items())
            },
            reason=reason,
        )


def _as_incumbent(trial: Trial | None, config: Config) -> Incumbent:
    if trial is None:
        return Incumbent(config, Status.NOT_RECORDED)
    failed = not trial.compiled.ok
    status = trial.compiled.status if failed else trial.measurement.status
    return Incumbent(config, status, trial.measurement.median_us, trial.compiled.shared_bytes)
