"""Choose the entry of every point from a fused-MoE layer's trials.

Up and down are tuned separately but chosen together: an engine sorts a batch's tokens once, in
blocks of BLOCK_SIZE_M, and runs both gemms on that order, so a pair must share its BLOCK_SIZE_M. A
pair replaces the incumbent (the engine's own pair) only if it is faster by more than the noise.
Every batch size gets an entry.

`find_baselines` finds the entries that an engine runs without this tuner, and its makers' own
entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config, read_lenient
from tuner.errors import MalformedConfigFile, NothingFits
from tuner.families.fused_moe.both_gemms import (
    Choice,
    SizeTrials,
    choices_of,
    finalists,
    gain,
    kept,
    trials_by_size,
    why_nothing_fits,
)
from tuner.families.fused_moe.engine import MoeEngine, format_file_name
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point, folder_version
from tuner.problems.results import Entry, Trial, as_incumbent, copied, own_choice
from tuner.tuning.seeds import KEPT, Baselines, tuned_near
from tuner.tuning.tune import STAYS

# Of entries in a file that servers do not ask for; the run's notes name the file.
MAKERS = "the engine's makers tuned it on this card, in a file that servers do not ask for"
SLOWER = "the {} configuration stays: the makers' entry for this card is predicted to be slower"


@dataclass(frozen=True)
class MoePolicy:
    """The margins by which a faster time counts."""

    noise: float  # relative; a smaller gain over the incumbent does not count
    tie: float | None = None  # relative: times this near count as equal; None: `noise`
    one_config: bool = False  # the engine has one file for both gemms

    def beats(self, time_us: float, incumbent_us: float) -> bool:
        """Say whether a time is below the incumbent's by more than the noise."""
        return time_us < incumbent_us * (1 - self.noise)

    def ties(self, time_us: float, best_us: float, incumbent_us: float | None) -> bool:
        """Say whether a time counts as equal to the best time, and also beats the incumbent."""
        tie = self.noise if self.tie is None else self.tie
        equal = time_us <= best_us * (1 + tie)
        return equal and (incumbent_us is None or self.beats(time_us, incumbent_us))


@dataclass(frozen=True)
class MoeChooser:
    """Chooses the entries of a run, and the trials worth timing again."""

    incumbents: Mapping[Point, Mapping[str, Config]]
    policy: MoePolicy
    requested: Collection[int]  # the batch sizes that were tuned
    # By batch size, the BLOCK_SIZE_M of a gemm that is not tuned now. The other gemm must share it.
    blocks: Mapping[int, int] | None = None
    previous: Mapping[Point, Config] | None = None  # the stored choices when the run began
    trusted: Mapping[Point, Config] | None = None  # the makers' own: stays if it can run at all

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return an entry for each point that `incumbents` names, in order of batch size.

        All sizes that were not tuned get the engine's configuration, or the nearest tuned pair if
        the engine's cannot run. They need an entry because with a file the engine no longer uses
        its heuristic. The choice of an earlier run stays unless a pair is faster by more than a
        tie, so that nothing changes from night to night without a reason.

        Raises NothingFits, which names the batch size, if no candidate of a requested size has a
        time.
        """
        fields = list(self._fields(trials))
        entries: list[Entry] = []
        choices: dict[int, Choice] = {}
        neighbour: Choice | None = None
        for field in fields:
            if field.batch_size in self.requested:
                trusted = field.pair(self.trusted or {})
                neighbour, reason = _choose_at(field, self.policy, neighbour, trusted)
                choices[field.batch_size] = neighbour
                entries += _entries(field, neighbour, reason)
        for field in fields:
            if field.batch_size not in self.requested:
                entries += _untuned(field, choices, entries)
        return sorted(entries, key=lambda entry: entry.point)

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials worth timing again; see `finalists`."""
        one = self.policy.one_config
        return finalists(self._fields(trials), entries, self.requested, one_config=one)

    def _fields(self, trials: Sequence[Trial]) -> Iterator[SizeTrials]:
        return trials_by_size(trials, self.incumbents, self.blocks, self.previous)


def _untuned(
    field: SizeTrials, choices: Mapping[int, Choice], tuned: list[Entry]
) -> Iterator[Entry]:
    name, incumbent = field.incumbent()
    own = [
        own_choice(Point(field.batch_size, gemm), config, name, field.trials[gemm].get(config))
        for gemm, config in (incumbent or {}).items()
    ]
    if own and None not in own:
        yield from filter(None, own)
        return
    nearest = min(choices, key=lambda batch_size: abs(batch_size - field.batch_size))
    for entry in tuned:
        if entry.point.batch_size == nearest:
            yield copied(entry, Point(field.batch_size, gemm_of(entry.point)), name)


def _choose_at(
    field: SizeTrials, policy: MoePolicy, neighbour: Choice | None, trusted: Choice | None
) -> tuple[Choice, str]:
    best = _fastest(field, policy.one_config)
    name, incumbent = field.incumbent()
    incumbent_us = field.total_us(incumbent) if incumbent else None
    trusted_us = field.total_us(trusted) if trusted else None
    if trusted is not None and trusted_us is not None:
        if name == "shipped":
            return trusted, KEPT
        if incumbent is None or incumbent_us is None or trusted_us <= incumbent_us:
            return trusted, MAKERS
        return incumbent, SLOWER.format(name)
    if best is None:
        raise NothingFits(why_nothing_fits(field))
    best_us = field.total_us(best)
    assert best_us is not None  # _fastest returns timed pairs only
    stands = _previous(field, policy, best_us, incumbent_us)
    if stands is not None and stands != incumbent:
        return stands, f"{gain(field, stands)}; {STAYS}"
    if (
        incumbent is not None
        and incumbent_us is not None
        and not policy.beats(best_us, incumbent_us)
    ):
        return incumbent, kept(name, field.predicted)
    # Among equal times a run would choose by its noise, and the next run otherwise.
    light = _lightest(field, best, policy, incumbent_us)
    # Fewer distinct kernels make a server start faster, so a tie goes to the neighbour's pair.
    if neighbour is not None and field.previous is None:
        neighbour_us = field.total_us(neighbour)
        if neighbour_us is not None and policy.ties(neighbour_us, best_us, incumbent_us):
            light = neighbour
    return light, gain(field, light)


def _previous(
    field: SizeTrials, policy: MoePolicy, best_us: float, incumbent_us: float | None
) -> Choice | None:
    """Return the stored pair, unless another pair is faster by more than a tie or the engine's own
    pair is faster at all.
    """
    if field.previous is None or (policy.one_config and len(set(field.previous.values())) > 1):
        return None
    pair = dict(field.previous)
    pair_us = field.total_us(pair)
    if pair_us is None or not policy.ties(pair_us, best_us, None):
        return None
    return pair if incumbent_us is None or pair_us <= incumbent_us else None


def _fastest(field: SizeTrials, one_config: bool) -> Choice | None:
    best: tuple[float, Choice] | None = None
    for choice in choices_of(field, one_config):
        total = field.total_us(choice)
        if total is not None and (best is None or total < best[0]):
            best = total, choice
    return best[1] if best else None


def _lightest(
    field: SizeTrials, best: Choice, policy: MoePolicy, incumbent_us: float | None
) -> Choice:
    """Choose among the pairs that are as fast as the best, within a tie: the fewest changes come
    first, then the least shared memory, stages and warps.
    """
    best_us = field.total_us(best)
    assert best_us is not None
    if policy.one_config:
        pairs = list(choices_of(field, one_config=True))
    else:
        rivals = [_rivals(field.trials[gemm], config, policy) for gemm, config in best.items()]
        pairs = [dict(zip(best, pair, strict=True)) for pair in itertools.product(*rivals)]
    timed = ((pair, field.total_us(pair)) for pair in pairs)
    equal = [p for p, us in timed if us is not None and policy.ties(us, best_us, incumbent_us)]
    return min(equal, key=lambda p: (field.changes(p), _weight(field, p)), default=best)


def _rivals(timed: Mapping[Config, Trial], best: Config, policy: MoePolicy) -> list[Config]:
    """Return the configurations of a gemm that may replace `best` beside the other gemm's."""
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


def _weight(field: SizeTrials, choice: Choice) -> tuple[int, int, int, list[str]]:
    trials = [field.trials[gemm][config] for gemm, config in choice.items()]
    return (
        sum(trial.compiled.shared_bytes or 0 for trial in trials),
        sum(config.get("num_stages", 0) for config in choice.values()),
        sum(config.get("num_warps", 0) for config in choice.values()),
        [config.key for config in choice.values()],
    )


def _entries(field: SizeTrials, choice: Choice, reason: str) -> Iterator[Entry]:
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
                name: as_incumbent(pair[gemm], field.trials[gemm].get(pair[gemm]))
                for name, pair in sorted(field.incumbents.items())
            },
            reason=reason,
        )


@dataclass(frozen=True)
class MoeBaselines(Baselines):
    """The engine's own entries, and entries for the card in a file that its servers do not ask
    for.
    """

    unread: Path | None = None  # that file
    unread_entries: Mapping[Point, Config] | None = None

    @cached_property
    def trusted(self) -> Mapping[Point, Config]:
        """Return the entries that the makers measured on the card, near its size. They may not run
        with this Triton.
        """
        shipped = {
            point: self.configs[point]["shipped"] for point in self.configs if self._ships(point)
        }
        return {**(self.unread_entries or {}), **shipped}


def find_baselines(
    engine: MoeEngine,
    problem: FusedMoe,
    device: Device,
    triton: str,
    gemms: Sequence[Gemm],
    batch_sizes: Iterable[int],
) -> MoeBaselines:
    """Return baselines by point: "default", and "shipped" if the loader finds a file.

    The points cover the sizes that a file must hold, and `batch_sizes`.
    """
    files = _files(engine, problem, device, triton)
    keys = [read_lenient(path, engine.fields).entries.keys() for path in files.values()]
    configs: dict[Point, dict[str, Config]] = {}
    near: set[Point] = set()
    for size in sorted({*engine.sizes(problem, device, triton), *batch_sizes}):
        by_name = engine.incumbents(problem, device, size, triton)
        for gemm in gemms:
            configs[Point(size, gemm)] = {
                name: launch_config(pair[gemm], device.target.platform)
                for name, pair in by_name.items()
            }
        if Gemm.UP in files and "shipped" in by_name and all(tuned_near(size, k) for k in keys):
            near.update(Point(size, gemm) for gemm in gemms)
    # A gemm's entry may have another BLOCK_SIZE_M than the stored entry of the other gemm.
    whole = len(gemms) > 1 or not engine.has_down_files()
    found = MoeBaselines(configs, frozenset(near), uncompiled=whole)
    return found if files else _with_unread(found, engine, problem, device)


def _files(engine: MoeEngine, problem: FusedMoe, device: Device, triton: str) -> dict[Gemm, Path]:
    """Return the files that the loader reads."""
    found = {
        gemm: engine.find_file(None, problem, device, gemm, triton)
        for gemm in (Gemm if engine.has_down_files() else (Gemm.UP,))
    }
    return {gemm: path for gemm, path in found.items() if path is not None}


def _with_unread(
    found: MoeBaselines, engine: MoeEngine, problem: FusedMoe, device: Device
) -> MoeBaselines:
    """Return the baselines with the entries of the newest file for the card that the loader does
    not find: a file of another Triton, or named before the flag for scales per channel.
    """
    up, down = (_unread(engine, problem, device, gemm) for gemm in (Gemm.UP, Gemm.DOWN))
    if up is None:
        return found
    files = {Gemm.UP: up, Gemm.DOWN: down if down and down.parent == up.parent else up}
    try:
        entries = {gemm: read_lenient(path, engine.fields).entries for gemm, path in files.items()}
    except MalformedConfigFile:
        return found  # no server reads it
    picked: dict[Point, Config] = {}
    for point in found.configs:
        some = entries[gemm_of(point)]
        if all(tuned_near(point.batch_size, each) for each in entries.values()):
            config = engine.pick(some, point.batch_size)
            picked[point] = launch_config(config, device.target.platform)
    return replace(found, unread=up, unread_entries=picked)


def _unread(engine: MoeEngine, problem: FusedMoe, device: Device, gemm: Gemm) -> Path | None:
    if gemm is Gemm.DOWN and not engine.has_down_files():
        return None
    name = engine.file_name(problem, device, gemm)
    names = [name]
    if problem.dtype is Dtype.INT8_W8A8 and problem.per_channel_quant:
        # Before the flag, names of int8 without blocks meant scales per channel (sglang 0.4.4,
        # fused_moe_kernel: "channel-wise"), and names of fp8 meant one scale for all.
        key = replace(engine.read_file_name(name), per_channel_quant=False)
        names.append(format_file_name(key))
    paths = [path for path in sorted(engine.configs.glob(engine.pattern)) if path.name in names]
    return max(paths, key=_age, default=None)


def _age(path: Path) -> list[int]:
    version = folder_version(path.parent.name)
    return [int(part) for part in version.split(".") if part.isdecimal()]
