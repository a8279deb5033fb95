"""Build a bundle: configs, launch scripts, manifests, checks, and the provenance of entries."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.archive import BundleFile, pack
from tuner.deploy.bundle.asked_files import (
    SET_CONFIG,
    AskedFile,
    FileComparison,
    asked_files,
    compare_files,
    dispatch_notes,
    file_names,
    not_known,
    server_flags,
    winners_of_servers,
)
from tuner.deploy.bundle.commands import (
    CARRY_OVER,
    environment_notes,
    node_commands,
    node_environments,
    not_carried_over,
    uses_rdma,
)
from tuner.deploy.bundle.configs import ConfigFolder, config_folder
from tuner.deploy.bundle.kubernetes import lws_manifest, no_manifest_reason
from tuner.deploy.bundle.manifest import (
    CONFIGS,
    FORMAT,
    KIND,
    NAME,
    SUMS,
    file_rows,
    manifest_text,
    sums_text,
)
from tuner.deploy.bundle.notes import (
    advice_notes,
    advised_files,
    attention_notes,
    usable_winners,
)
from tuner.deploy.bundle.readme import readme_text
from tuner.deploy.bundle.scripts import (
    bare_script,
    docker_script,
    fabric_program,
    fabric_script,
)
from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight import Expected, PreflightResult, build_single_file
from tuner.devices.table import Device
from tuner.engines.config_files import PROVENANCE
from tuner.engines.engine import Engine
from tuner.engines.settings import unknown_flags
from tuner.errors import ExportRefused, UnknownModel
from tuner.export.advice import Verdict, advise_all
from tuner.export.files import write_all
from tuner.export.selection import (
    LeftOut,
    leave_out_predicted,
    left_out_lines,
    select,
    with_shipped,
)
from tuner.export.summary import shelf_notes
from tuner.problems.points import Problem
from tuner.problems.results import Winner

_EXECUTABLE = 0o755


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory."""

    name: str
    archive: bytes
    manifest: dict[str, Any]
    compared: FileComparison

    @property
    def notes(self) -> list[str]:
        """Return notes for the operator, a sentence each."""
        return [str(note) for note in self.manifest["notes"]]


def build_bundle(
    winners: Sequence[Winner],
    cluster: Cluster,
    engine: Engine,
    device: Device,
    *,
    allow_predicted: bool,
    allow_missing: bool = False,
    wanted: Sequence[Problem] = (),
    named: Sequence[Problem] = (),
    preflight: PreflightResult | None = None,
) -> Bundle:
    """Build a bundle. Equal arguments give equal bytes.

    `engine` is the engine whose kernels were tuned, which the cluster must run. The bundle takes
    the winners of the `wanted` problems, or without any, of the problems that the cluster's servers
    have. Unless `allow_predicted`, sizes with predicted winners are left out, and a note names
    them. Unless `allow_missing`, the bundle must hold every file that the servers ask for. Problems
    are left alone if the cluster's servers run a kernel that is not slower, and a note says so.

    Raises ExportRefused if a required file is missing, for winners of another engine, if nothing is
    left, if one of the `named` problems is left out, and for winners that cannot be shipped;
    MalformedCluster for a launch that the cluster's engine cannot do.
    """
    name = f"{cluster.name}-{device.name}"
    environments = node_environments(cluster, preflight)
    for rank, variables in enumerate(environments):  # a launch that cannot be is refused first
        node_commands(cluster, rank, variables)
    chosen = _choose(
        *(winners, cluster, engine, device, wanted, named),
        allow_predicted=allow_predicted,
        allow_missing=allow_missing,
    )
    folder = chosen.folder
    files = _launch_files(cluster, environments, name, folder.variables)
    files |= _check_files(cluster.expected(device.name, folder.hash))
    files |= {f"{CONFIGS}/{path}": BundleFile(data) for path, data in folder.files.items()}
    entries, known = _entries(folder)
    statuses = dict(sorted(Counter(str(row["status"]) for row in entries).items()))
    notes = [*chosen.missing, *environment_notes(cluster, environments, preflight)]
    notes += [*_notes(cluster, engine, statuses), *chosen.notes]
    rdma = any(uses_rdma(cluster, variables) for variables in environments)
    facts = (name, cluster, device.name, folder.hash, statuses, notes, chosen.compared)
    no_kubernetes = no_manifest_reason(cluster, environments)
    readme = readme_text(*facts, no_kubernetes, pointers=folder.variables, privileged=rdma)
    files["README.md"] = _text(readme)
    files[SUMS] = _text(sums_text(files))
    manifest = {
        **_identity(name, cluster, device, rdma=rdma),
        "configs": {"tuned_for": f"{engine.name} {engine.version}", "hash": folder.hash},
        "environments": known,
        "keys": chosen.compared.as_json(),
        "statuses": statuses,
        "entries": entries,
        "notes": notes,
        "files": file_rows(files, _origins(folder, engine)),
    }
    files[NAME] = _text(manifest_text(manifest))
    return Bundle(name, pack(name, files), manifest, chosen.compared)


@dataclass(frozen=True)
class _Chosen:
    """The config files that a bundle ships, and notes on files that it does not ship."""

    folder: ConfigFolder
    compared: FileComparison
    missing: list[str]
    notes: list[str]


def _choose(
    winners: Sequence[Winner],
    cluster: Cluster,
    engine: Engine,
    device: Device,
    wanted: Sequence[Problem],
    named: Sequence[Problem],
    *,
    allow_predicted: bool,
    allow_missing: bool,
) -> _Chosen:
    asked = _asked(cluster, engine, device)
    mine = _winners_to_ship(winners, wanted, asked, cluster, engine, device)
    usable, notes = usable_winners(with_shipped(mine), engine)
    left_out: list[LeftOut] = []
    if not allow_predicted:
        usable, left_out = leave_out_predicted(usable, named)
    advice = advise_all(usable, device, (engine.name, engine.version), server_flags(cluster))
    folder = config_folder(advised_files(advice, named), cluster, engine, device, named)
    left_out += folder.left_out
    alone = {one.problem for one in advice if one.verdict is not Verdict.FILES}
    read = None if asked is None else [file for file in asked if file.problem not in alone]
    stored = list(dict.fromkeys(one.problem for one in winners if not one.from_shelf))
    compared, missing = _compared(
        read, folder, left_out, stored, cluster, engine, device, allow_missing=allow_missing
    )
    if not folder.files:
        notes.append("no tuned file is in the bundle: all is left alone, as notes say")
    notes += [*left_out_lines(left_out), *advice_notes(advice)]
    notes += attention_notes(folder.exported)
    notes += shelf_notes(winner for one in advice for winner in one.winners)
    notes += dispatch_notes(usable, cluster, engine, device)
    return _Chosen(folder, compared, missing, notes)


def _winners_to_ship(
    winners: Sequence[Winner],
    wanted: Sequence[Problem],
    asked: Sequence[AskedFile] | None,
    cluster: Cluster,
    engine: Engine,
    device: Device,
) -> Sequence[Winner]:
    """Return the winners of the wanted problems, else of the problems that the cluster's servers
    have.
    """
    if engine.name != cluster.engine.name:
        raise ExportRefused(
            f"{engine.name}'s winners are not {cluster.engine.name}'s, which {cluster.name} runs: "
            f"bundle winners that were tuned with --engine {cluster.engine.name}"
        )
    found = (
        select(winners, wanted, device, engine)
        if wanted
        else winners_of_servers(winners, asked, cluster, engine, device)
    )
    if not found:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}; "
            "winners for other engines are not its own: ",
            cli="`tuner tune --cluster` with the cluster's file makes them",
            api=f"post jobs for the device {device.name} first",
        )
    return found


def _asked(cluster: Cluster, engine: Engine, device: Device) -> list[AskedFile] | None:
    """Return the files that servers ask for; None for a model that is not known."""
    try:
        return asked_files(cluster, engine, device)
    except UnknownModel:
        return None


def _compared(
    asked: Sequence[AskedFile] | None,
    folder: ConfigFolder,
    left_out: Sequence[LeftOut],
    stored: Sequence[Problem],
    cluster: Cluster,
    engine: Engine,
    device: Device,
    *,
    allow_missing: bool,
) -> tuple[FileComparison, list[str]]:
    """Return (the files asked and bundled, notes)."""
    if asked is None:
        compared = FileComparison((), file_names(folder.tuned))
        return compared, [f"{not_known(cluster)}; {SET_CONFIG}"]
    bundled = folder.tuned, left_out, stored
    return compare_files(asked, *bundled, engine, device, allow_missing=allow_missing)


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Write the archive; of a symbolic link, its target. Raises UnwritableOutput."""
    target = path.resolve()
    write_all(target.parent, {target: bundle.archive})


def _text(text: str) -> BundleFile:
    return BundleFile(text.encode())


def _check_files(expected: Expected) -> dict[str, BundleFile]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "preflight.py")
        build_single_file(path)
        preflight = path.read_bytes()
    return {
        "preflight.py": BundleFile(preflight, _EXECUTABLE),
        "fabric.py": BundleFile(fabric_program(), _EXECUTABLE),
        "cluster.json": _text(expected.to_json()),
    }


def _launch_files(
    cluster: Cluster, environments: Sequence[dict[str, str]], name: str, pointers: Sequence[str]
) -> dict[str, BundleFile]:
    files: dict[str, BundleFile] = {}
    inside = cluster.in_container()
    kept = not_carried_over(cluster, environments)
    if kept:
        files[CARRY_OVER] = _text(json.dumps(kept) + "\n")
    for rank, (node, variables) in enumerate(zip(cluster.nodes, environments, strict=True)):
        below = f"nodes/{node.name}"
        commands = node_commands(cluster, rank, variables)
        bare = bare_script(cluster, rank, variables, commands, pointers=pointers)
        files[f"{below}/bare.sh"] = BundleFile(bare.encode(), _EXECUTABLE)
        fabric = fabric_script(cluster, rank, variables)
        files[f"{below}/fabric.sh"] = BundleFile(fabric.encode(), _EXECUTABLE)
        if cluster.engine.image:
            commands = node_commands(inside, rank, variables)
            docker = docker_script(
                *(cluster, rank, variables, commands), pointers=pointers, carry_over=bool(kept)
            )
            files[f"{below}/docker.sh"] = BundleFile(docker.encode(), _EXECUTABLE)
    if not no_manifest_reason(cluster, environments):
        on_nodes = f"/opt/tuner/{name}"
        text = lws_manifest(cluster, environments[0], on_nodes, pointers=pointers)
        files["kubernetes/leaderworkerset.json"] = _text(text)
    return files


def _entries(folder: ConfigFolder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (a row for each entry, the environments, which rows name by their index)."""
    known: list[dict[str, Any]] = []
    entries = []
    for tuned in folder.tuned:
        for row in tuned.rows:
            if row["environment"] not in known:
                known.append(row["environment"])
            index = known.index(row["environment"])
            entries.append({"file": f"{CONFIGS}/{tuned.path}", **row, "environment": index})
    return entries, known


def _origins(folder: ConfigFolder, engine: Engine) -> dict[str, str]:
    tuned = {file.path for file in folder.tuned}
    origins = {}
    for path in folder.files:
        if path in tuned:
            origins[f"{CONFIGS}/{path}"] = "tuned"
        elif not path.startswith(f"{PROVENANCE}/"):
            origins[f"{CONFIGS}/{path}"] = f"packaged with {engine.name} {engine.version}"
    return origins


def _notes(cluster: Cluster, engine: Engine, statuses: dict[str, int]) -> list[str]:
    notes = _flag_notes(cluster, engine)
    if cluster.engine.release not in ("", engine.version):
        notes.append(
            f"the entries were chosen for {engine.name} {engine.version}, and the servers run "
            f"{cluster.engine.release}: names of files and kernels may differ"
        )
    if statuses.get("predicted"):
        notes.append(
            f"{statuses['predicted']} entries were predicted, not measured: measure servers with "
            "and without them"
        )
    return notes


def _flag_notes(cluster: Cluster, engine: Engine) -> list[str]:
    """Return a note for each flag that the cluster's engine does not know, if the engine is on this
    disk.
    """
    if cluster.engine.release not in ("", engine.version):
        return []
    name = f"{engine.name} {engine.version}"
    found = unknown_flags(engine, cluster.engine.flags)
    return [f"engine.flags hold a flag that {name} does not know: {flag}" for flag in found]


def _identity(name: str, cluster: Cluster, device: Device, *, rdma: bool) -> dict[str, Any]:
    return {
        "kind": KIND,
        "format": FORMAT,
        "name": name,
        "tool": f"engine-tuner {version('engine-tuner')}",
        "cluster": {
            "name": cluster.name,
            "engine": cluster.engine.name,
            "image": cluster.engine.image,
            "model": cluster.model.name,
            "parallel": asdict(cluster.parallel),
            "nodes": [node.name for node in cluster.nodes],
            "gpus": cluster.gpus,
            "rdma": rdma,
        },
        "device": device.name,
    }
