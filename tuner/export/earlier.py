"""Files of an earlier export, for problems that are left alone by now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import ExportRefused, UnwritableOutput
from tuner.export.delivery import PlannedFile, delivery_of
from tuner.export.files import read_sidecar
from tuner.problems.records import Winner
from tuner.problems.registry import family_of


def take_back(winners: Sequence[Winner], engine: Engine, device: Device, out: Path) -> list[Path]:
    """Remove the files that an earlier export wrote under `out` for the problems of some winners.

    A server would go on reading them. Where the engine ships a file of that name, it takes the
    place. Files that were changed since, and files of other problems, stay. Returns the removed
    files. Raises UnwritableOutput where one cannot be removed.
    """
    removed = []
    packaged: dict[str, dict[Path, Path]] = {}  # the engine's files, by family and place
    for file in _earlier(winners, engine, device, out):
        family = family_of(file.problem).name
        if family not in packaged:
            own = delivery_of(engine, family).packaged()
            packaged[family] = {out / place: path for place, path in own}
        shipped = packaged[family].get(file.path)
        try:
            if shipped:
                file.path.write_bytes(shipped.read_bytes())
            else:
                file.path.unlink()
            file.sidecar.unlink()
        except OSError as error:
            raise UnwritableOutput(
                f"cannot remove {file.path}, which an earlier export wrote and servers should no "
                f"longer read: {error.strerror}: choose a folder that you may write to"
            ) from None
        removed.append(file.path)
    return removed


def _earlier(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path
) -> Iterator[PlannedFile]:
    for problem in dict.fromkeys(winner.problem for winner in winners):
        mine = [winner for winner in winners if winner.problem == problem]
        delivery = delivery_of(engine, family_of(problem).name)
        with contextlib.suppress(ExportRefused):  # such a file was never written
            for file in delivery.plan(mine, device, root):
                provenance = read_sidecar(file.path, file.sidecar) or {}
                if provenance.get("problem") == problem.spec():
                    yield file
