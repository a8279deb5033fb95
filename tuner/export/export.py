"""Write winners as the files that servers load, each with a provenance sidecar.

The files are under a root that a server can be pointed at. Each family's `Delivery` knows how to
point a server at it, and the folders below it. The sidecars are under `<root>/provenance/`.
Everything is checked before the first byte is written, and all files are written or none.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tuner.devices.table import Device
from tuner.engines.config_files import PROVENANCE, kept_file, shipped_at
from tuner.engines.engine import Engine, supports
from tuner.engines.settings import config_variables
from tuner.errors import ExportRefused
from tuner.export.advice import NO_FLAGS
from tuner.export.choice import MadeFiles, choose, families_of, winners_of
from tuner.export.delivery import (
    Delivery,
    ExportFile,
    ServerFlags,
    delivery_of,
    files_by_card,
    take_back,
)
from tuner.export.files import left_out_name, left_out_text, sidecar_text, write_all
from tuner.export.selection import LeftOut
from tuner.export.summary import ExportSummary, shelf_notes, triton_notes
from tuner.problems.points import Problem
from tuner.problems.registry import families
from tuner.problems.results import Winner


def export_device(
    winners: Sequence[Winner],
    device: Device,
    engine: Engine,
    out: Path | None,
    *,
    allow_predicted: bool,
    wanted: Sequence[Problem] = (),
    named: Sequence[Problem] = (),
    flags: Mapping[str, str] = NO_FLAGS,
) -> ExportSummary:
    """Export a device's current winners: as an overlay under `out`, or into the engine if None.

    Take the arguments of `choose`, and raise the errors of `choose` and `export`. Write nothing if
    nothing is better than servers' kernels without this program. Files of an earlier export for a
    problem that is left alone by now are removed.
    """
    chosen = choose(
        winners,
        device,
        engine,
        out,
        allow_predicted=allow_predicted,
        wanted=wanted,
        named=named,
        flags=flags,
    )
    if not chosen.winners:
        return ExportSummary(
            out or engine.root,
            files=(),
            carried=0,
            variables=(),
            left_out=chosen.left_out,
            advice=chosen.advice,
            removed=take_back(chosen.left_alone, engine, device, out),
        )
    used = deliveries_for(chosen.winners, engine)
    carried = packaged_to_carry(used, out) if out else {}
    files = export(
        *(chosen.winners, engine, device, out, chosen.not_written),
        beside=carried,
        made=chosen.files,
    )
    if out is None:
        root = _engine_root(used, engine)
        left = chosen.left_out
        return ExportSummary(
            *(root, files, 0, ()),
            notes=[*triton_notes(files, engine), *shelf_notes(chosen.winners, for_here=True)],
            left_out=left,
            advice=chosen.advice,
            flags=chosen.flags,
            removed=take_back(chosen.left_alone, engine, device, None),
            restores=_restores(files),
        )
    variables, flags_for, notes = way_to(out, files, used, engine)
    return ExportSummary(
        out,
        files,
        len(carried.keys() - {file.path for file in files}),
        variables,
        flags_for,
        [*notes, *shelf_notes(chosen.winners, for_here=True)],
        left_out=chosen.left_out,
        advice=chosen.advice,
        flags=chosen.flags,
        removed=take_back(chosen.left_alone, engine, device, out),
    )


def way_to(
    folder: Path, files: Sequence[ExportFile], used: Sequence[Delivery], engine: Engine
) -> tuple[list[str], list[ServerFlags], list[str]]:
    """Say how servers are pointed at the files that `used` wrote into a folder.

    Return the variables, the server flags and the notes of an `ExportSummary`.
    """
    readable = {delivery.variable for delivery in used}
    variables = [name for name in config_variables(engine.name, folder) if name in readable]
    notes = [
        *triton_notes(files, engine),
        *(delivery.note for delivery in used if delivery.note),
        *(_copy_text(folder, delivery, engine) for delivery in used if not delivery.variable),
    ]
    return variables, [flags for one in used for flags in one.advice(files)], notes


def _copy_text(out: Path, delivery: Delivery, engine: Engine) -> str:
    """Return the step for files that servers read only in the engine's package."""
    assert delivery.engine_root is not None  # a delivery has a variable or a folder
    folder = delivery.engine_root.relative_to(engine.root).as_posix()
    return (
        f"{engine.name} {engine.version} reads no folder but its own: copy {out}/configs and "
        f"{out}/{PROVENANCE} into {engine.name}/{folder} where it serves, or export there with "
        "--into-engine"
    )


def export(
    winners: Sequence[Winner],
    engine: Engine,
    device: Device,
    out: Path | None,
    left_out: Sequence[LeftOut] = (),
    *,
    beside: Mapping[Path, bytes] | None = None,
    made: MadeFiles = MappingProxyType({}),
) -> list[ExportFile]:
    """Write the winners' files, and check that servers would find each entry.

    The files go under `out`, or into the engine's package if None. If a winner is only predicted
    and an earlier export has a measured entry, that entry is kept. `beside` has other files to
    write there; a winner's file counts before them. The list of `left_out` is written too. `made`
    has the files of families whose files are made already.

    Raises ExportRefused, and writes nothing, if two winners contradict each other, if a file would
    lack a size, or if servers could not read a file. Raises UnwritableOutput, and writes nothing,
    if a file cannot be written.
    """
    used = deliveries_for(winners, engine)
    built: list[tuple[Delivery, Path, Device, Sequence[ExportFile]]] = []
    for family, delivery in zip(families_of(winners), used, strict=True):
        root = out or delivery.engine_root
        assert root is not None  # `loadable` left out families without a folder there
        found = made.get(family.name)
        if found is None:
            found = [*files_by_card(delivery, winners_of(family, winners), device, root)]
        built += [(delivery, root, card, some) for card, some in found]
    files = [file for *_, some in built for file in some]
    assert len({file.path for file in files}) == len(files)  # `writable` left out the others
    _refuse_incomplete(files)
    data = dict(beside or {})
    for file in files:
        # The file is the last to be replaced: if only its sidecar were missing, it would pass for
        # the engine's.
        if replaced := shipped_at(file.path):
            data[kept_file(file.sidecar)] = replaced.read_bytes()
        data[file.sidecar] = sidecar_text(file.provenance).encode()
        data[file.path] = file.text().encode()
    top = out or _engine_root(used, engine)
    others = top / PROVENANCE / left_out_name(device)
    if left_out:
        data[others] = left_out_text(left_out).encode()
    write_all(top, data)
    for file in files:
        if (kept := kept_file(file.sidecar)) not in data:
            kept.unlink(missing_ok=True)  # of another release that was installed here
    if not left_out:
        others.unlink(missing_ok=True)  # an earlier export's
    for delivery, place, card, some in built:
        delivery.verify(some, card, place)
    return files


def _refuse_incomplete(files: Iterable[ExportFile]) -> None:
    """Refuse a file that lacks a size: servers would run the entry of another size there, which may
    be slower than their kernel without the file. Raises ExportRefused.
    """
    for file in files:
        if file.missing:
            sizes = " ".join(map(str, file.missing))
            raise ExportRefused(
                f"{file.problem.spec()}: {file.path.name} would lack the sizes {sizes}: tune them "
                "too, or choose other problems with ",
                cli="--problem SPEC",
                api="problem=SPEC",
                page="the downloads of their own results",
            )


def _restores(files: Iterable[ExportFile]) -> list[str]:
    """Return shell commands that restore an engine's package as before the files were written."""
    found = []
    for file in files:
        kept = kept_file(file.sidecar)
        words = ("mv", "-f", kept) if kept.exists() else ("rm", "-f", file.sidecar)
        found.append(shlex.join(str(word) for word in (*words, file.path)))
    return found


def deliveries_for(some: Iterable[Winner | ExportFile], engine: Engine) -> list[Delivery]:
    """Return the delivery of each family of some winners or files to the engine's servers."""
    return [delivery_of(engine, family.name) for family in families_of(some)]


def packaged_files(engine: Engine) -> Iterator[tuple[Path, Path]]:
    """Yield the engine's own files, of all families: the path under an overlay, and the file.

    A server that is pointed at a folder reads all its files from there.
    """
    for family in families():
        if supports(engine.name, family.name):
            yield from delivery_of(engine, family.name).packaged()


def package_folders(engine: Engine) -> list[Path]:
    """Return the folders that hold all of the engine's own files on which an export depends."""
    deliveries = (delivery_of(engine, f.name) for f in families() if supports(engine.name, f.name))
    return sorted({delivery.engine_root for delivery in deliveries if delivery.engine_root})


def packaged_to_carry(deliveries: Iterable[Delivery], root: Path) -> dict[Path, bytes]:
    """Return the engine's own files that are missing under a root, by the path that they belong at.

    Servers that are pointed at a root read no packaged files, so the root must have them too. Files
    that are there stay: this tuner exported them, or a user put them there.
    """
    carried: dict[Path, bytes] = {}
    for delivery in deliveries:
        for relative, path in delivery.packaged():
            if not (target := root / relative).exists():
                carried[target] = path.read_bytes()
    return carried


def _engine_root(deliveries: Iterable[Delivery], engine: Engine) -> Path:
    """Return the folder of the engine's package that all files are under."""
    (root, *others) = {delivery.engine_root for delivery in deliveries}
    return engine.root if others or root is None else root
