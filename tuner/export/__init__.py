"""Winners -> the files that servers load, each with a provenance sidecar.

The files lie under a root that a server can be pointed at: fused MoE's in
`<root>/configs/triton_X_Y_Z/`, where the engine's own loader finds them, attention's in
`<root>/attention/triton_X_Y_Z/`, where this package's plugin does. What is known of their entries
lies beside, under `<root>/provenance/`. Everything is checked before the first byte is written;
each file is replaced at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.engines.sglang.attention.server_flags import (
    KV_SPLITS_FLAG,
    ServerFlags,
    advised_flags,
    with_advised_flags,
)
from tuner.engines.sglang.plugin.files import CONFIG_DIR_VARIABLE
from tuner.errors import ExportRefused
from tuner.export.files import (
    PROVENANCE,
    prove_writable,
    provenance_row,
    replace_file,
    sidecar_text,
)
from tuner.export.report import ExportedFile, ExportReport
from tuner.export.selection import refuse_shared_files, select
from tuner.families.attention.export import (
    AttentionFileExport,
    plan_attention,
    prove_readable,
    verify_attention,
)
from tuner.families.attention.problem import Attention
from tuner.families.fused_moe.export import (
    ConfigFileExport,
    carry_packaged,
    packaged_files,
    plan_moe,
    verify_moe,
)
from tuner.problems.results import Status
from tuner.problems.text import Problem
from tuner.store import Store, Winner

__all__ = [
    "KV_SPLITS_FLAG",
    "PROVENANCE",
    "AttentionFileExport",
    "ConfigFileExport",
    "ExportReport",
    "ExportedFile",
    "ServerFlags",
    "advised_flags",
    "carry_packaged",
    "export",
    "export_device",
    "loadable",
    "packaged_files",
    "provenance_row",
    "select",
    "stored_winners",
]


def export_device(
    store: Store,
    device: Device,
    engine: Engine,
    out: Path | None,
    *,
    allow_predicted: bool,
    wanted: Sequence[Problem] = (),
) -> ExportReport:
    """Export the winners for a device: as an overlay under `out`, or into the engine if None.

    Only those of the problems in `wanted`, if it has any; see `select`. Raises ExportRefused where
    the store has none for this engine version.
    """
    found = stored_winners(store, device, engine, wanted)
    winners, left_out = loadable(found, engine, into_engine=out is None)
    root = out or engine.package_root
    files = export(winners, engine, device, root, allow_predicted=allow_predicted)
    if out is None:
        return ExportReport(root, files, 0, (), left_out=left_out)
    attention = [file for file in files if isinstance(file, AttentionFileExport)]
    carried, variables = 0, []
    if len(attention) < len(files):
        carried = carry_packaged(engine, root)
        variables += [engine.config_dir_variable] if engine.config_dir_variable else []
    variables += [CONFIG_DIR_VARIABLE] if attention else []
    return ExportReport(root, files, carried, variables, advised_flags(attention), left_out)


def stored_winners(
    store: Store, device: Device, engine: Engine, wanted: Sequence[Problem] = ()
) -> list[Winner]:
    """What there is to export, of the problems in `wanted` if it has any.

    Raises ExportRefused where there is nothing.
    """
    winners = store.winners(device=device.name, engine=engine.name, engine_version=engine.version)
    if not winners:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}: "
            f"run `tuner tune MODEL --device {device.name}` first"
        )
    return select(winners, wanted) if wanted else winners


def loadable(
    winners: Sequence[Winner], engine: Engine, *, into_engine: bool = False
) -> tuple[list[Winner], str]:
    """Those that the engine's servers can load from there, and why the others are left out.

    Raises ExportRefused where none can be loaded.
    """
    others = [winner for winner in winners if not isinstance(winner.problem, Attention)]
    if not engine.has_plugins():
        why = f"{engine.name} {engine.version} loads no plugins, and attention files need one"
    elif into_engine:
        why = (
            "attention files do not belong in the engine's package: write them elsewhere with "
            f"--out DIR, and start servers with {CONFIG_DIR_VARIABLE}=DIR"
        )
    else:
        return list(winners), ""
    if not others:
        raise ExportRefused(f"there are winners for attention alone: {why}")
    left = {w.problem for w in winners} - {w.problem for w in others}
    return others, f"attention left out ({len(left)} problems): {why}" if left else ""


def export(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path, *, allow_predicted: bool
) -> list[ExportedFile]:
    """Write the winners' files under `root` and prove that each entry is found there again.

    An entry that an earlier export measured is kept where the winner was only predicted.

    Raises ExportRefused, with nothing written, where a winner is predicted and that is not
    allowed, where two contradict each other or ask for one file, or where servers could not read
    one;
    UnwritableOutput where the folder cannot be written.
    """
    if not allow_predicted:
        _refuse_predicted(winners)
    moe = plan_moe(winners, engine, device, root)
    attention = with_advised_flags(plan_attention(winners, root))
    refuse_shared_files((planned.path, planned.problem) for planned in attention)
    for planned in attention:
        prove_readable(planned)
    prove_writable(root)
    files: list[ExportedFile] = [*moe, *attention]
    for file in files:
        replace_file(file.path, file.text().encode())
        replace_file(file.sidecar, sidecar_text(file.provenance).encode())
    for ours in moe:
        verify_moe(ours, engine, device, root)
    for planned in attention:
        verify_attention(planned, planned.path)
    return files


def _refuse_predicted(winners: Iterable[Winner]) -> None:
    predicted = [w for w in winners if w.entry.status is Status.PREDICTED]
    if predicted:
        raise ExportRefused(
            f"{len(predicted)} of the winners for {predicted[0].problem.spec()} were predicted, "
            f"not measured: measure them, or pass --allow-predicted"
        )
