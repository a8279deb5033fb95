"""The shelf: results that were measured elsewhere, and that are read where a store has none.

It is a folder of files by card, engine and Triton, as `write_results` writes them. One comes
with this program.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from tuner.engines.engine import engine_triton, find_engine, kernel_hash
from tuner.errors import BadInput, UnknownEngine, UnsupportedKernel
from tuner.problems.points import Point, Problem
from tuner.problems.registry import family_of
from tuner.problems.results import Environment, Published, Status, Winner
from tuner.store.result_files import read_results

FOLDER_VARIABLE = "TUNER_SHELF"
SHIPPED = Path(__file__).parents[1] / "shelf"


def shelf_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of TUNER_SHELF, or that of this program; None if the variable is empty.

    Raises BadInput if there is no such folder.
    """
    folder = Path(environ.get(FOLDER_VARIABLE, SHIPPED) or os.devnull)
    if folder.is_dir():
        return folder
    if not environ.get(FOLDER_VARIABLE):
        return None
    raise BadInput(
        f"{FOLDER_VARIABLE}={folder} is no folder: name one that `tuner results export` wrote, or "
        "leave it empty"
    )


def winners_for(device: str, engine: str, version: str) -> list[Winner]:
    """Return the winners that servers of the engine on this machine can use, in order of problem.

    They are for the Triton that such servers run and for the kernels of the engine's source here.
    Without the engine there are none. Raises BadInput for a file that cannot be read.
    """
    found = _on_shelf(device, engine, version)
    kernels = {family: _kernels(engine, version, family) for family in _families(found)}
    return [
        winner
        for winner in found
        if kernels[family_of(winner.problem).name]
        == (winner.environment.triton, winner.environment.kernel_hash)
    ]


def winners_like(problem: Problem, environment: Environment) -> list[Winner]:
    """Return the winners of a problem that were measured with the same kernels on such a card.

    There are none for an environment in which nothing is measured.
    """
    if not environment.torch:
        return []
    place = environment.device, environment.engine, environment.engine_version
    kernels = environment.triton, environment.kernel_hash
    return [
        winner
        for winner in _on_shelf(*place)
        if winner.problem == problem
        and (winner.environment.triton, winner.environment.kernel_hash) == kernels
    ]


def published_for(
    devices: Collection[str], engines: Collection[str], wanted: Collection[Problem]
) -> list[Published]:
    """Return the results of some problems, for all releases of the engines, whatever is here."""
    points: dict[tuple[Problem, Environment, Status, int, datetime], list[Point]] = {}
    for winner in (one for path in _files(devices, engines) for one in _read(path)):
        if winner.problem in wanted:
            place = winner.problem, winner.environment, winner.status
            key = (*place, winner.run_id, winner.published_at)
            points.setdefault(key, []).append(winner.entry.point)
    return [
        Published(problem, environment, status, frozenset(some), run_id, at)
        for (problem, environment, status, run_id, at), some in points.items()
    ]


def _on_shelf(device: str, engine: str, version: str) -> list[Winner]:
    paths = _files([device], [f"{engine}-{version}-triton"])
    return [winner for path in paths for winner in _read(path)]


def _files(devices: Collection[str], beginnings: Collection[str]) -> list[Path]:
    folder = shelf_folder()
    if folder is None:
        return []
    names = [(card, f"{text}-*.jsonl.gz") for card in devices for text in beginnings]
    return [path for card, name in names for path in sorted((folder / card).glob(name))]


def _read(path: Path) -> Sequence[Winner]:
    return _read_at(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read_at(path: Path, _: int) -> Sequence[Winner]:
    return [winner for result in read_results(path) for winner in result.winners()]


def _families(winners: Sequence[Winner]) -> set[str]:
    return {family_of(winner.problem).name for winner in winners}


def _kernels(engine: str, version: str, family: str) -> tuple[str, str] | None:
    """Return the Triton and the hash of the kernels of the engine here; None if it has none."""
    try:
        here = find_engine(f"{engine}=={version}")
        return engine_triton(here) or "", kernel_hash(here, family)
    except (UnknownEngine, UnsupportedKernel):
        return None
