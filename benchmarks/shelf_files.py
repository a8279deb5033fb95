"""Make the shelf from what benchmarks/shelf.py measured.

    python -m benchmarks.shelf_files

The newest result of each problem counts, for each card, engine and Triton. These results go to
tuner/shelf, which `tuner` reads and the wheel has. Of these files alone, configs_out/ is made: the
config files by card, engine and Triton, as `tuner export` writes them, and index.jsonl, which says
of each problem whose it is, what the files gain, and where they were measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.config_files import PROVENANCE
from tuner.engines.engine import find_engine, kernel_hash
from tuner.export.advice import Advice
from tuner.export.choice import choose
from tuner.export.export import export
from tuner.models.served_as import models_of
from tuner.problems.registry import family_of
from tuner.problems.results import Entry, counted
from tuner.store.result_files import RunResult, read_results, write_results
from tuner.store.shelf import SHIPPED
from tuner.tuning.gains import gains, mean_gain

ROOT = Path(__file__).parents[1]
RAW = ROOT / "benchmarks/results/shelf"
PLAIN = ROOT / "configs_out"
INDEX = "index.jsonl"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    raw = [result for path in sorted(RAW.rglob("*.jsonl.gz")) for result in read_results(path)]
    shutil.rmtree(SHIPPED, ignore_errors=True)
    paths = write_results(SHIPPED, newest(raw))
    for folder in PLAIN.iterdir():
        if folder.is_dir() and folder.name not in ("configs", PROVENANCE):  # an export's
            shutil.rmtree(folder)
    rows = write_plain(SHIPPED, PLAIN)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(rows)} problems in {len(paths)} files of {size / 1e3:.0f} kB")


def newest(results: Iterable[RunResult]) -> list[RunResult]:
    """Return the newest result of each problem with the same card, engine and kernels.

    They are in the order in which each problem first occurs.
    """
    found: dict[tuple[object, ...], RunResult] = {}
    for one in results:
        place = one.key.environment
        key = one.key.problem, place.device, place.engine, place.engine_version, place.triton
        best = found.setdefault(key, one)
        found[key] = max(best, one, key=lambda some: some.published_at)
    return list(found.values())


def write_plain(shelf: Path, out: Path) -> list[dict[str, Any]]:
    """Write the config files and the index of all files of a shelf. Returns the index's rows."""
    rows: list[dict[str, Any]] = []
    for path in sorted(shelf.glob("*/*.jsonl.gz")):
        folder = Path(path.parent.name, path.name.removesuffix(".jsonl.gz"))
        rows += write_release(read_results(path), out, folder)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (out / INDEX).write_text(text, encoding="utf-8")
    return rows


def write_release(
    results: Sequence[RunResult], out: Path, folder: Path
) -> Iterator[dict[str, Any]]:
    """Write the config files of one card, engine and Triton. Gives a row for each problem."""
    place = results[0].key.environment
    engine, card = find_engine(f"{place.engine}=={place.engine_version}"), find_device(place.device)
    measured = {(family_of(r.key.problem).name, r.key.environment.kernel_hash) for r in results}
    if measured != {(family, kernel_hash(engine, family)) for family, _ in measured}:
        raise ValueError(f"{folder} was measured with other kernels than those of the engine here")
    winners = [winner for one in results for winner in one.winners()]
    problems = [one.key.problem for one in results]
    with TemporaryDirectory() as made:
        root = Path(made)
        chosen = choose(winners, card, engine, root, allow_predicted=False, wanted=problems)
        files = export(chosen.winners, engine, card, root, made=chosen.files)
        shutil.rmtree(root / PROVENANCE)
        shutil.copytree(root, out / folder, dirs_exist_ok=True)
        names = [(file.problem, str(folder / file.path.relative_to(root))) for file in files]
    advice = {one.problem: one for one in chosen.advice}
    for one in results:
        mine = sorted(name for problem, name in names if problem == one.key.problem)
        yield _row(one, advice.get(one.key.problem), mine)


def _row(result: RunResult, advice: Advice | None, files: Sequence[str]) -> dict[str, Any]:
    place, entries = result.key.environment, result.entries
    statuses = [entry.status.value for entry in entries]
    return {
        "problem": result.key.problem.spec(),
        "models": list(result.models or models_of(result.key.problem)),
        "card": place.device,
        "engine": f"{place.engine}=={place.engine_version}",
        "triton": place.triton,
        "advice": advice.verdict.value if advice else "left out: another problem has its file",
        "flags": dict(advice.flags) if advice else {},
        "files": list(files),
        "gain": _rounded(mean_gain(one.ratio for one in gains(entries))),
        "gain_over_shipped": _rounded(over_shipped(entries)),
        "entries": counted({one: statuses.count(one) for one in statuses}),
        "measured": result.published_at.date().isoformat(),
        "driver": place.driver,
        "torch": place.torch,
        "kernel_hash": place.kernel_hash,
    }


def over_shipped(entries: Iterable[Entry]) -> float | None:
    """Return the geometric mean of the gains over the engine's own file; None if it has none."""
    times: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        own = entry.incumbents.get("shipped")
        if own and own.median_us and entry.median_us:
            times.setdefault(entry.point.size, []).append((own.median_us, entry.median_us))
    return mean_gain(
        sum(own for own, _ in some) / sum(mine for _, mine in some) for some in times.values()
    )


def _rounded(gain: float | None) -> float | None:
    return None if gain is None else round(gain, 4)


if __name__ == "__main__":
    main()
