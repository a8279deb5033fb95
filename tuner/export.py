"""Winners -> the files that an engine loads, each with a provenance sidecar.

The files lie under a root that the engine can be pointed at, `<root>/configs/triton_X_Y_Z/`;
what is known of their entries lies beside, under `<root>/provenance/`, never in the engine's
JSON. Everything is checked before the first byte is written; each file is replaced at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.devices import Device
from tuner.engines import Engine, config_file_text, read_config_file
from tuner.errors import ExportRefused, UnwritableOutput
from tuner.problems import Config, FusedMoe, Gemm
from tuner.render import table
from tuner.results import Incumbent, Status
from tuner.store import Store, Winner

PROVENANCE = "provenance"


@dataclass(frozen=True)
class ConfigFileExport:
    """One engine file to write: a gemm of a problem for a device and a Triton version."""

    path: Path
    problem: FusedMoe
    gemm: Gemm
    triton: str
    entries: Mapping[int, Config]
    provenance: Mapping[str, Any]  # the sidecar's JSON
    statuses: Mapping[int, Status]

    def text(self) -> str:
        return config_file_text(self.entries)

    @property
    def sidecar(self) -> Path:
        """`<root>/provenance/<folder under configs/>/<name>`."""
        parts = list(self.path.parts)
        last = len(parts) - 1 - parts[::-1].index("configs")
        return Path(*parts[:last], PROVENANCE, *parts[last + 1 :])


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote."""

    root: Path
    files: Sequence[ConfigFileExport]
    carried: int  # packaged files copied beside them
    engine_variable: str | None  # how an engine is pointed at the root, where it must be

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner export --json` prints."""
        return {
            "root": str(self.root),
            "files": [
                {
                    "path": str(file.path),
                    "provenance": str(file.sidecar),
                    "problem": file.problem.spec(),
                    "gemm": file.gemm.value,
                    "triton": file.triton,
                    "batch_sizes": list(file.entries),
                    "statuses": {
                        status.value: sum(s is status for s in file.statuses.values())
                        for status in sorted(set(file.statuses.values()))
                    },
                }
                for file in self.files
            ],
            "carried": self.carried,
        }

    def as_text(self) -> str:
        """The files, how far each was measured, and how to use them."""
        rows = [
            (
                file.path.relative_to(self.root),
                len(file.entries),
                *(sum(s is status for s in file.statuses.values()) for status in _SHOWN),
            )
            for file in self.files
        ]
        headers = ("file", "entries", *(status.value for status in _SHOWN))
        lines = [table(headers, rows), "", f"written under {self.root}"]
        if self.engine_variable:
            lines[-1] += f" with {self.carried} of the engine's own files"
            lines.append(f"export {self.engine_variable}={self.root.resolve()}")
        return "\n".join(lines)


_SHOWN = (Status.OK, Status.PREDICTED, Status.INCUMBENT)


def export_device(
    store: Store, device: Device, engine: Engine, out: Path | None, *, allow_predicted: bool
) -> ExportReport:
    """Export all winners for a device: as an overlay under `out`, or into the engine if None.

    Raises ExportRefused where the store has none for this engine version.
    """
    winners = stored_winners(store, device, engine)
    root = out or engine.package_root
    files = export(winners, engine, device, root, allow_predicted=allow_predicted)
    if out is None:
        return ExportReport(root, files, 0, None)
    return ExportReport(root, files, carry_packaged(engine, root), engine.config_dir_variable)


def stored_winners(store: Store, device: Device, engine: Engine) -> list[Winner]:
    """What there is to export. Raises ExportRefused where there is nothing."""
    winners = store.winners(
        device=device.name,
        engine=engine.name,
        engine_version=engine.version,
        families=[FusedMoe.family],
    )
    if not winners:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}: "
            f"run `tuner tune MODEL --device {device.name}` first"
        )
    return winners


def export(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path, *, allow_predicted: bool
) -> list[ConfigFileExport]:
    """Write the winners' files under `root` and prove that the engine's rules find each entry.

    An entry that an earlier export measured is kept where the winner was only predicted.

    Raises ExportRefused, with nothing written, where a winner is predicted and that is not
    allowed; UnwritableOutput where the folder cannot be written.
    """
    if not allow_predicted:
        _refuse_predicted(winners)
    both = engine.has_down_files()  # without, one file and one configuration serve both gemms
    wanted = [w for w in winners if both or w.entry.point.gemm is Gemm.UP]
    by_file = groupby(sorted(wanted, key=_file_key), key=_file_key)
    files = [_plan(list(group), engine, device, root) for _, group in by_file]
    _prove_writable(root)
    for file in files:
        _replace(file.path, file.text().encode())
        _replace(file.sidecar, (json.dumps(file.provenance, indent=2) + "\n").encode())
    for file in files:
        _verify(file, engine, device, root)
    return files


def packaged_files(engine: Engine) -> Iterator[tuple[Path, Path]]:
    """The files that come with the engine: the path under `configs/`, and where each lies."""
    source = engine.package_root / "configs"
    for path in sorted(source.rglob("*.json")):
        yield path.relative_to(source), path


def carry_packaged(engine: Engine, root: Path) -> int:
    """Copy the files that come with the engine under `root`; returns how many were written.

    A root that replaces the packaged one must carry the packaged files too, or the engine loses
    them. Files that this tuner exported there are left alone.

    Raises UnwritableOutput where the folder cannot be written.
    """
    _prove_writable(root)
    written = 0
    for relative, path in packaged_files(engine):
        target = root / "configs" / relative
        data = path.read_bytes()
        ours = (root / PROVENANCE / relative).exists()
        if not ours and not (target.exists() and target.read_bytes() == data):
            _replace(target, data)
            written += 1
    return written


def _file_key(winner: Winner) -> tuple[str, str, str]:
    return winner.problem.spec(), winner.environment.triton, winner.entry.point.gemm.value


def _refuse_predicted(winners: Iterable[Winner]) -> None:
    predicted = [w for w in winners if w.entry.status is Status.PREDICTED]
    if predicted:
        raise ExportRefused(
            f"{len(predicted)} of the winners for {predicted[0].problem.spec()} were predicted, "
            f"not measured: measure them, or pass --allow-predicted"
        )


def _plan(winners: list[Winner], engine: Engine, device: Device, root: Path) -> ConfigFileExport:
    problem, triton = winners[0].layer, winners[0].environment.triton
    gemm = winners[0].entry.point.gemm
    path = engine.config_dir(root, triton) / engine.file_name(problem, device, gemm)
    rows = {winner.entry.point.batch_size: provenance_row(winner) for winner in winners}
    file = ConfigFileExport(path, problem, gemm, triton, {}, {}, {})
    kept = _measured_earlier(file)
    rows |= {size: row for size, row in kept.items() if _is_weaker(rows.get(size), row)}
    entries = {size: Config(row["config"]) for size, row in sorted(rows.items())}
    provenance = {
        "file": path.name,
        "sha256": hashlib.sha256(config_file_text(entries).encode()).hexdigest(),
        "tool": f"engine-tuner {version('engine-tuner')}",
        "problem": problem.spec(),
        "gemm": gemm.value,
        "entries": {str(size): rows[size] for size in sorted(rows)},
    }
    statuses = {size: Status(rows[size]["status"]) for size in entries}
    return ConfigFileExport(path, problem, gemm, triton, entries, provenance, statuses)


def provenance_row(winner: Winner) -> dict[str, Any]:
    """What a sidecar says of one entry."""
    entry = winner.entry
    return {
        "config": dict(entry.config),
        "status": entry.status.value,
        "median_us": entry.median_us,
        "shared_bytes": entry.compiled.shared_bytes,
        "n_regs": entry.compiled.n_regs,
        "n_spills": entry.compiled.n_spills,
        "incumbents": {name: _incumbent_row(i) for name, i in sorted(entry.incumbents.items())},
        "reason": entry.reason,
        "environment": asdict(winner.environment),
        "published_at": winner.published_at.isoformat(),
    }


def _incumbent_row(incumbent: Incumbent) -> dict[str, Any]:
    return {
        "config": dict(incumbent.config),
        "status": incumbent.status.value,
        "median_us": incumbent.median_us,
    }


def _measured_earlier(file: ConfigFileExport) -> dict[int, dict[str, Any]]:
    """The measured rows of the sidecar that is there, if it still describes the file beside it."""
    try:
        data = file.path.read_bytes()
        provenance = json.loads(file.sidecar.read_text(encoding="utf-8"))
        if provenance["sha256"] != hashlib.sha256(data).hexdigest():
            return {}
        rows: dict[int, dict[str, Any]] = {int(k): v for k, v in provenance["entries"].items()}
        return {size: row for size, row in rows.items() if row["status"] == Status.OK.value}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # no sidecar, or not one of ours: there is nothing to keep


def _is_weaker(row: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> bool:
    return row is None or row["status"] != measured["status"]


def _prove_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UnwritableOutput(f"cannot write to {root}: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, never a part."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o644)  # mkstemp's 0600 would hide the file from the engine's user
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UnwritableOutput(f"cannot write {path}: {error.strerror}") from None


def _verify(file: ConfigFileExport, engine: Engine, device: Device, root: Path) -> None:
    found = engine.find_file(root, file.problem, device, file.gemm, file.triton)
    if found != file.path:
        raise ExportRefused(f"wrote {file.path}, but {engine.name}'s rules find {found}")
    entries = read_config_file(found).entries
    for batch_size, config in file.entries.items():
        picked = engine.pick(entries, batch_size)
        if picked != config:
            raise ExportRefused(f"{found}: {engine.name} picks {picked} at M={batch_size}")
