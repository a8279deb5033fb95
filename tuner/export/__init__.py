"""From winners to the files that servers load, each with a provenance sidecar.

The files are under a root that a server can be pointed at. Each family's `Delivery` knows how to
point a server at it, and the folders below it. The sidecars are under `<root>/provenance/`.
Everything is checked before the first byte is written, and each file is replaced atomically.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device
from tuner.engines.engine import Engine, supports
from tuner.errors import ExportRefused
from tuner.export.delivery import Delivery, PlannedFile, delivery_of
from tuner.export.files import PROVENANCE, prove_writable, replace_file, sidecar_text
from tuner.export.report import ExportReport
from tuner.export.selection import select
from tuner.problems.points import Problem
from tuner.problems.records import Winner
from tuner.problems.registry import Family, families, family_of
from tuner.problems.results import Status


class WinnerStore(Protocol):
    """What an export needs of a store."""

    def winners(self, *, device: str, engine: str, engine_version: str) -> Sequence[Winner]: ...


def export_device(
    store: WinnerStore,
    device: Device,
    engine: Engine,
    out: Path | None,
    *,
    allow_predicted: bool,
    wanted: Sequence[Problem] = (),
) -> ExportReport:
    """Export the winners for a device: as an overlay under `out`, or into the engine if None.

    If `wanted` has problems, only their winners are exported; see `select`. Raises ExportRefused
    where the store has no winners for this engine version, and whatever `export` raises.
    """
    found = stored_winners(store, device, engine, wanted)
    winners, left_out = loadable(found, engine, into_engine=out is None)
    files = export(winners, engine, device, out, allow_predicted=allow_predicted)
    if out is None:
        return ExportReport(_engine_root(files, engine), files, 0, (), left_out=left_out)
    used = deliveries_for(files, engine)
    return ExportReport(
        out,
        files,
        carried=sum(carry_packaged(delivery, out) for delivery in used),
        variables=[delivery.variable for delivery in used if delivery.variable],
        server_flags=[flags for delivery in used for flags in delivery.advice(files)],
        notes=[delivery.note for delivery in used if delivery.note],
        left_out=left_out,
    )


def stored_winners(
    store: WinnerStore, device: Device, engine: Engine, wanted: Sequence[Problem] = ()
) -> Sequence[Winner]:
    """The winners to export; if `wanted` has problems, only the winners for these.

    Raises ExportRefused where there are none.
    """
    winners = store.winners(device=device.name, engine=engine.name, engine_version=engine.version)
    if not winners:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}: ",
            cli=f"run `tuner tune MODEL --device {device.name}` first",
            api=f"post a job for the device {device.name} first",
        )
    return select(winners, wanted) if wanted else winners


def loadable(
    winners: Sequence[Winner], engine: Engine, *, into_engine: bool = False
) -> tuple[list[Winner], str]:
    """The winners that the engine's servers can load, and a text why the others are left out.

    Raises ExportRefused where servers can load none.
    """
    kept: list[Winner] = []
    left: list[str] = []
    for family in _families(winners):
        mine = _of(family, winners)
        why = delivery_of(engine, family.name).obstacle(into_engine=into_engine)
        if not why:
            kept += mine
            continue
        if len(mine) == len(winners):
            raise ExportRefused(f"there are winners for {family.name} alone: {why}")
        count = len({winner.problem for winner in mine})
        left.append(f"{family.name} left out ({count} problems): {why}")
    if not kept and left:
        raise ExportRefused("; ".join(left))
    return kept, "; ".join(left)


def export(
    winners: Sequence[Winner],
    engine: Engine,
    device: Device,
    out: Path | None,
    *,
    allow_predicted: bool,
) -> list[PlannedFile]:
    """Write the winners' files, and prove that servers would find each entry.

    The files go under `out`, or into the engine's package if None. Where a winner is only predicted
    and an earlier export has a measured entry, that entry is kept.

    Raises ExportRefused, and writes nothing, where a winner is predicted and that is not allowed,
    where two winners contradict each other or need the same file, and where servers could not read
    a file. Raises UnwritableOutput where the folder cannot be written.
    """
    if not allow_predicted:
        _refuse_predicted(winners)
    planned: list[tuple[Delivery, Path, Sequence[PlannedFile]]] = []
    for family in _families(winners):
        delivery = delivery_of(engine, family.name)
        root = out or delivery.engine_root
        assert root is not None  # `loadable` left out families without a folder there
        planned.append((delivery, root, delivery.plan(_of(family, winners), device, root)))
    for _, root, _ in planned:
        prove_writable(root)
    files = [file for _, _, some in planned for file in some]
    for file in files:
        replace_file(file.path, file.text().encode())
        replace_file(file.sidecar, sidecar_text(file.provenance).encode())
    for delivery, root, some in planned:
        delivery.verify(some, device, root)
    return files


def deliveries_for(some: Iterable[Winner | PlannedFile], engine: Engine) -> list[Delivery]:
    """How each family of some winners or files reaches the engine's servers."""
    return [delivery_of(engine, family.name) for family in _families(some)]


def packaged_files(engine: Engine) -> Iterator[tuple[Path, Path]]:
    """The engine's own files, of all families: the path under an overlay, and the file.

    A server that is pointed at a folder reads all that it reads from there.
    """
    for family in families():
        if supports(engine.name, family.name):
            yield from delivery_of(engine, family.name).packaged()


def carry_packaged(delivery: Delivery, root: Path) -> int:
    """Copy the engine's own files under `root`, and return how many were written.

    Servers that are pointed at a root read no packaged files, so the root must have them too. Files
    that this tuner exported stay. Raises UnwritableOutput where the folder cannot be written.
    """
    prove_writable(root)
    written = 0
    for relative, path in delivery.packaged():
        target, data = root / relative, path.read_bytes()
        ours = (root / PROVENANCE / Path(*relative.parts[1:])).exists()
        if not ours and not (target.exists() and target.read_bytes() == data):
            replace_file(target, data)
            written += 1
    return written


def _engine_root(files: Sequence[PlannedFile], engine: Engine) -> Path:
    """The folder of the engine's package that all files are under."""
    (root, *others) = {delivery.engine_root for delivery in deliveries_for(files, engine)}
    return engine.root if others or root is None else root


def _families(some: Iterable[Winner | PlannedFile]) -> list[Family]:
    names = {family_of(one.problem).name for one in some}
    return [family for family in families() if family.name in names]


def _of(family: Family, winners: Sequence[Winner]) -> list[Winner]:
    return [winner for winner in winners if winner.problem.family in family.problems]


def _refuse_predicted(winners: Iterable[Winner]) -> None:
    predicted = [w for w in winners if w.entry.status is Status.PREDICTED]
    if predicted:
        raise ExportRefused(
            f"{len(predicted)} of the winners for {predicted[0].problem.spec()} were predicted, "
            "not measured: measure them, or pass ",
            cli="--allow-predicted",
            api="allow_predicted=true",
        )
