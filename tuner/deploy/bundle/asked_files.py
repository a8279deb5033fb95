"""List the files that a cluster's servers will ask for, beside the tuned files of a bundle.

A server computes the names of files from its model, its ranks, its flags and its release. A bundle
whose files have other names is loaded without a word, and none of its entries counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tuner.deploy.bundle.configs import TunedFile
from tuner.deploy.cluster import Cluster
from tuner.devices.table import Device
from tuner.engines.dispatch import engine_runs, what_runs
from tuner.engines.engine import Engine, supports
from tuner.engines.settings import flags_of, of_model, read_flags, unfusing_flag, with_experts
from tuner.errors import (
    BadInput,
    ExportRefused,
    MalformedCheckpoint,
    UnknownModel,
    UnsupportedKernel,
)
from tuner.export.delivery import cards_to_serve, delivery_of
from tuner.export.selection import LeftOut, left_out_lines, winners_of
from tuner.families.fused_moe.problem import FusedMoe
from tuner.files import read_limited
from tuner.models.fields import MAX_BYTES
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, family_of
from tuner.problems.results import Winner
from tuner.shell import command_line
from tuner.targets import resolve_all

SET_CONFIG = "set model.config to the path of its config.json"
SHOWN = 3  # of the stored problems, in a message
_SAME, _MISSING, _UNASKED = "the same", "missing", "not asked for"


def server_flags(cluster: Cluster) -> dict[str, str]:
    """Return the flags and variables of the cluster's servers, and the class of their model.

    Nodes' own variables are left aside.
    """
    given = {**cluster.environment, **flags_of(cluster.engine.flags)}
    flags = with_experts(cluster.engine.name, given, cluster.parallel.ep)
    try:
        return of_model(flags, served_model(cluster))
    except UnknownModel:
        return flags


def served_model(cluster: Cluster) -> str | bytes:
    """Return the bytes of the model's config.json, or the name of a preset. Raises UnknownModel."""
    model = cluster.model
    if model.config:
        return read_limited(model.config, MAX_BYTES, "config.json", MalformedCheckpoint)
    try:
        return find_preset(model.path.rstrip("/").rpartition("/")[2]).name
    except UnknownModel:
        return find_preset(model.name).name


def served_version(cluster: Cluster, engine: Engine) -> str:
    """Return the version of the cluster's engine, else the version of `engine`."""
    return cluster.engine.release or engine.version


def dispatch_notes(
    winners: Sequence[Winner], cluster: Cluster, engine: Engine, device: Device
) -> list[str]:
    """Return a line for each kernel that the problems of the winners run.

    Without a version, the rules of the newest known release count.
    """
    problems = (winner.problem for winner in winners)
    version, flags = served_version(cluster, engine), server_flags(cluster)
    answers = engine_runs(cluster.engine.name, version, problems, device, flags)
    return [runs.line() for runs in answers]


@dataclass(frozen=True)
class AskedFile:
    """A file that servers ask for."""

    name: str
    problem: Problem
    by_plugin: bool  # only servers with this package's plugin ask for it


@dataclass(frozen=True)
class FileComparison:
    """The files that servers ask for, and the files in a bundle, by name."""

    asked: Sequence[AskedFile]
    bundled: Sequence[str]

    @property
    def missing(self) -> list[AskedFile]:
        return [file for file in self.asked if file.name not in self.bundled]

    @property
    def unasked(self) -> list[str]:
        asked = {file.name for file in self.asked}
        return [name for name in self.bundled if name not in asked]

    def rows(self) -> list[tuple[str, str]]:
        """Return (name, whether it is asked for and bundled) for each file."""
        rows = [(one.name, _SAME if one.name in self.bundled else _MISSING) for one in self.asked]
        return [*rows, *((name, _UNASKED) for name in self.unasked)]

    def as_json(self) -> dict[str, list[str]]:
        return {"asked": [one.name for one in self.asked], "bundled": list(self.bundled)}


def asked_files(cluster: Cluster, engine: Engine, device: Device) -> list[AskedFile]:
    """Return the files that the cluster's servers ask for, without files of kernels that never run.

    `engine` is the engine that the winners were tuned for. Raises UnknownModel if the model is no
    preset and the cluster file names no config.json, and the errors of `resolve_all`.
    """
    flags = server_flags(cluster)
    version = served_version(cluster, engine)
    found: list[AskedFile] = []
    for problem in cluster_problems(cluster, engine, device):
        runs = what_runs(cluster.engine.name, version, problem, device, flags)
        if runs and not runs.may_read:
            continue
        found += _files_of(problem, engine, device)
    return list(dict.fromkeys(found))


def file_names(tuned: Sequence[TunedFile]) -> list[str]:
    """Return the names of a bundle's tuned files, sorted."""
    return sorted(file.path.rpartition("/")[2] for file in tuned)


def winners_of_servers(
    winners: Sequence[Winner],
    asked: Sequence[AskedFile] | None,
    cluster: Cluster,
    engine: Engine,
    device: Device,
) -> list[Winner]:
    """Return the winners of problems that the cluster's servers have.

    Raises ExportRefused if these problems are not known, or if all winners are of other problems.
    """
    own = [winner for winner in winners if not winner.from_shelf]
    if asked is None:
        stored = f", or bundle the stored problems: add {_as_options(own, device)}" if own else ""
        raise ExportRefused(
            not_known(cluster),
            cli=f"; {SET_CONFIG}{stored}",
            api="; give model.name a preset's name, or run `tuner bundle`",
        )
    found = winners_of(winners, cluster_problems(cluster, engine, device))
    if not own or found:
        return found
    if not asked:
        raise ExportRefused(f"servers of {cluster.model.name} read no tuned file on {device.name}")
    others = list(dict.fromkeys(winner.problem for winner in own))
    wanted = [file for file in asked if not file.by_plugin] or asked
    raise ExportRefused(_missing_text(FileComparison(wanted, ()), (), others, engine, device))


def _as_options(winners: Sequence[Winner], device: Device) -> str:
    """Return the options that name the stored problems; of many, the first."""
    specs = list(dict.fromkeys(winner.problem.spec() for winner in winners))
    options = " ".join(command_line("--problem", spec) for spec in specs[:SHOWN])
    if len(specs) <= SHOWN:
        return options
    more = command_line("tuner", "nightly", "coverage", "--device", device.name)
    return f"{options}, or others of {len(specs)}: `{more}` lists them"


def not_known(cluster: Cluster) -> str:
    """Say why the files that the servers ask for are not known."""
    return f"the files that servers ask for are not known: {cluster.model.name} is no preset"


def compare_files(
    asked: Sequence[AskedFile],
    tuned: Sequence[TunedFile],
    left_out: Sequence[LeftOut],
    stored: Collection[Problem],
    engine: Engine,
    device: Device,
    *,
    allow_missing: bool,
) -> tuple[FileComparison, list[str]]:
    """Return (the files side by side, notes for the operator).

    Files that only the plugin asks for may be absent as a family: the engine's own constants then
    run. Raises ExportRefused if other files are missing, or some files of such a family; with
    `allow_missing` it is a note instead.
    """
    bundled = {family_of(file.problem).name for file in tuned}
    optional = {
        family_of(one.problem).name
        for one in asked
        if one.by_plugin and family_of(one.problem).name not in bundled
    }
    wanted = [one for one in asked if family_of(one.problem).name not in optional]
    compared = FileComparison(wanted, file_names(tuned))
    notes = [f"no {name} file is bundled: servers run the engine's own" for name in optional]
    if not compared.missing:
        return compared, notes
    said = _missing_text(compared, left_out, stored, engine, device)
    if not allow_missing:
        raise ExportRefused(f"{said}; or pass --allow-missing")
    return compared, [said, *notes]


def render_files(compared: FileComparison, device: Device) -> str:
    """Return the rows as text, without the device's name."""
    if not compared.asked:
        known = "the files that servers ask for are not known"
        return known if compared.bundled else "the bundle has no tuned file"
    told = f",device_name={device.name}"
    lines = [f"files for {device.name}: asked by the servers, and in the bundle"]
    for name, state in compared.rows():
        lines.append(f"  {name.replace(told, '').removesuffix('.json')}  |  {state}")
    return "\n".join(lines)


def cluster_problems(cluster: Cluster, engine: Engine, device: Device) -> list[Problem]:
    """Return the problems of a rank, of the families whose files can reach the cluster's
    servers.
    """
    parallel = cluster.parallel
    said = read_flags(cluster.engine.name, flags_of(cluster.engine.flags))
    if said.unread:
        raise BadInput(said.unread)
    # With ranks on all GPUs, dp is data-parallel attention; otherwise each replica has tp ranks.
    dp = parallel.dp if parallel.ranks == cluster.gpus else 1
    serving = Serving(
        engine=engine.name,
        engine_version=served_version(cluster, engine),
        device=device,
        tp=parallel.tp,
        dtype=said.dtype,
        converts=said.converts,
        options={"ep": parallel.ep, "dp": dp, **said.on(parallel.tp)},
    )
    reached = [family for family in families() if _reaches(family, engine)]
    resolved = resolve_all(served_model(cluster), serving, reached, name=cluster.model.name)
    return [problem for target in resolved for problem in target.problems]


def _reaches(family: Family, engine: Engine) -> bool:
    return supports(engine.name, family.name) and not delivery_of(engine, family.name).obstacle(
        into_engine=False
    )


def _files_of(problem: Problem, engine: Engine, device: Device) -> list[AskedFile]:
    try:
        delivery = delivery_of(engine, family_of(problem).name)
        cards = cards_to_serve(delivery, problem, device)
        names = [name for card in cards for name in delivery.asked(problem, card)]
        return [AskedFile(name, problem, delivery.by_plugin) for name in names]
    except UnsupportedKernel:
        return []  # the engine asks for no file of such a problem


def _missing_text(
    compared: FileComparison,
    left_out: Sequence[LeftOut],
    stored: Collection[Problem],
    engine: Engine,
    device: Device,
) -> str:
    problems = list(dict.fromkeys(one.problem for one in compared.missing))
    part = "none" if len(compared.missing) == len(compared.asked) else "not all"
    names = " ".join(one.name for one in compared.missing)
    text = (
        f"the servers ask for {len(compared.asked)} files, and {part} of them are bundled: {names}"
    )
    if compared.unasked:
        text += f"; they do not ask for {' '.join(compared.unasked)}"
    lines = left_out_lines(one for one in left_out if one.problem in problems)
    text += "".join(f"; {line}" for line in lines)
    untuned = [problem for problem in problems if problem not in {one.problem for one in left_out}]
    if not untuned:
        return text
    options = ("--device", device.name, "--engine", f"{engine.name}=={engine.version}")
    commands = " && ".join(
        command_line("tuner", "tune", problem.spec(), *options) for problem in untuned
    )
    return f"{text}; {_fusion_advice(untuned, stored, engine.name)}run `{commands}`"


def _fusion_advice(problems: Sequence[Problem], stored: Collection[Problem], engine: str) -> str:
    """Return the step if the files differ in fused shared experts alone; else ""."""
    for wanted in problems:
        for mine in stored:
            if not isinstance(wanted, FusedMoe) or not isinstance(mine, FusedMoe):
                continue
            fused = replace(wanted, E=mine.E, top_k=mine.top_k, shared_experts=mine.shared_experts)
            if wanted.E == mine.E or fused != mine:
                continue
            if wanted.E < mine.E:
                return f"{engine} here does not fuse the shared experts (--no-fuse-shared): "
            flag = unfusing_flag(engine)
            if flag:
                return f"{engine} here fuses the shared experts: add {flag} to engine.flags, or "
    return ""
