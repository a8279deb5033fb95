"""Read the shelf: results measured elsewhere, which count if a store has none.

It is a folder of files by card, engine and Triton, as `write_results` writes them. This program
comes with a shelf.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tuner.engines.engine import engine_triton, find_engine, kernel_hash
from tuner.errors import BadInput, UnknownEngine, UnsupportedKernel
from tuner.problems.points import Problem
from tuner.problems.registry import family_of
from tuner.problems.results import SHELF_RUN, Environment, Published, Winner
from tuner.store.result_files import RunResult, read_results

FOLDER_VARIABLE = "TUNER_SHELF"
SHIPPED = Path(__file__).parents[1] / "shelf"


def shelf_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of TUNER_SHELF, or this program's; None if the variable is empty.

    Raises BadInput if there is no such folder.
    """
    folder = Path(environ.get(FOLDER_VARIABLE, SHIPPED) or os.devnull)
    if folder.is_dir():
        return folder
    if not environ.get(FOLDER_VARIABLE):
        return None
    raise BadInput(
        f"{FOLDER_VARIABLE}={folder} is no folder: name a folder that `tuner results "
        "export` wrote, or leave it empty"
    )


def winners_for(
    device: str, engine: str, version: str, problem: Problem | None = None
) -> list[Winner]:
    """Return the winners that servers of the engine on this machine can use, in order of problem.

    They are for the Triton that such servers run and for the kernels of the engine's source here.
    Without the engine there are none. Raises BadInput for a file that cannot be read.
    """
    found = _results([device], [f"{engine}-{version}-triton"])
    wanted = [one for one in found if problem in (None, one.key.problem)]
    families = set(map(_family, wanted))
    kernels = {family: _kernels_here(engine, version, family) for family in families}
    served = (one for one in wanted if _kernels(one.key.environment) == kernels[_family(one)])
    return [winner for one in served for winner in one.winners()]


def winners_like(problem: Problem, environment: Environment) -> list[Winner]:
    """Return the winners of a problem that were measured with the same kernels on such a card.

    There are none for an environment in which nothing is measured.
    """
    name = f"{environment.engine}-{environment.engine_version}-triton"
    return [
        winner
        for one in _results([environment.device] if environment.torch else [], [name])
        if one.key.problem == problem and _kernels(one.key.environment) == _kernels(environment)
        for winner in one.winners()
    ]


def published_for(
    devices: Collection[str], engines: Collection[str], wanted: Collection[Problem]
) -> list[Published]:
    """Return the results of some problems, for all releases of the engines, also releases that are
    not here.
    """
    return [
        Published(
            one.key.problem,
            one.key.environment,
            status,
            frozenset(entry.point for entry in one.entries if entry.status is status),
            SHELF_RUN,
            one.published_at,
        )
        for one in _results(devices, engines)
        if one.key.problem in wanted
        for status in {entry.status for entry in one.entries}
    ]


def _results(devices: Collection[str], beginnings: Collection[str]) -> list[RunResult]:
    folder = shelf_folder()
    if folder is None:
        return []
    names = [(card, f"{text}-*.jsonl.gz") for card in devices for text in beginnings]
    paths = [path for card, name in names for path in sorted((folder / card).glob(name))]
    return [one for path in paths for one in _read(path, path.stat().st_mtime_ns)]


@lru_cache(maxsize=32)
def _read(path: Path, _: int) -> Sequence[RunResult]:
    return read_results(path)


def _family(result: RunResult) -> str:
    return family_of(result.key.problem).name


def _kernels(environment: Environment) -> tuple[str, str]:
    return environment.triton, environment.kernel_hash


def _kernels_here(engine: str, version: str, family: str) -> tuple[str, str] | None:
    try:
        here = find_engine(f"{engine}=={version}")
        return engine_triton(here) or "", kernel_hash(here, family)
    except (UnknownEngine, UnsupportedKernel):
        return None
