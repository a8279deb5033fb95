"""Make the files that servers read from winners, with an entry for each size of a problem.

A family's engine says where the files go and how they are written: a `Layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tuner.engines.config_files import read_sidecar
from tuner.errors import ExportRefused
from tuner.export.files import provenance_row, sidecar_fields
from tuner.problems.points import Config, Problem
from tuner.problems.results import Environment, Status, Winner

# The environment fields that an earlier measured row must share with the winners to be kept.
_OF_KERNELS = ("engine", "engine_version", "triton", "kernel_hash")


@dataclass(frozen=True)
class Content:
    """The entries of a file, and the problem and environment that they are for."""

    problem: Problem
    environment: Environment
    entries: Mapping[int, Config]  # by size, ascending, as the engine's loader returns them
    statuses: Mapping[int, Status]


class Layout(Protocol):
    """The paths and the format of an export's files."""

    def path(self, problem: Problem, triton: str) -> Path: ...
    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        """Return the batch sizes that a file must hold."""
        ...

    def sidecar(self, path: Path) -> Path: ...
    def text(self, content: Content) -> str: ...


@dataclass(frozen=True)
class SizedFile:
    """A file to write: a problem for a device and a Triton version."""

    path: Path
    sidecar: Path
    content: Content
    written: str
    provenance: Mapping[str, Any]  # the sidecar's JSON
    missing: Sequence[int]  # batch sizes that it lacks and must hold
    about: Mapping[str, str]  # which of a problem's files it is, in JSON; mostly empty

    @property
    def problem(self) -> Problem:
        return self.content.problem

    @property
    def triton(self) -> str:
        return self.content.environment.triton

    @property
    def entries(self) -> Mapping[int, Config]:
        return self.content.entries

    @property
    def statuses(self) -> Mapping[int, Status]:
        return self.content.statuses

    @property
    def own(self) -> frozenset[int]:
        """Return the sizes that keep the engine's own entry."""
        kept = (n for n, status in self.statuses.items() if status is Status.INCUMBENT)
        return frozenset(kept)

    def text(self) -> str:
        return self.written

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `tuner export --json` that only this family has."""
        return {**self.about, "batch_sizes": list(self.entries)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a bundle manifest's row for each entry."""
        for size, row in self.provenance["entries"].items():
            yield {
                "problem": self.provenance["problem"],
                **self.about,
                "batch_size": int(size),
                **{k: row[k] for k in ("status", "median_us", "reason", "environment")},
                "published_at": row["published_at"],
                "config": row["config"],
            }


F = TypeVar("F", bound=SizedFile)


def build_files(
    winners: Sequence[Winner],
    layout: Layout,
    row: Callable[[Winner], dict[str, Any]] = provenance_row,
    about: Mapping[str, str] = {},
    kind: type[F] = SizedFile,  # type: ignore[assignment]  # the default of F
) -> list[F]:
    """Return the files to write. Predicted entries do not replace entries that an earlier export
    measured with the same kernels.

    `row` gives the sidecar's object for a winner; its "config" is the entry. Raises the errors of
    the layout, and ExportRefused for a file of another problem or another card.
    """

    def key(winner: Winner) -> tuple[Path, str]:
        path = layout.path(winner.problem, winner.environment.triton)
        return path, winner.problem.spec()

    by_file = groupby(sorted(winners, key=key), key=key)
    return [kind(*_built(list(group), layout, row, about), about) for _, group in by_file]


def _built(
    winners: Sequence[Winner],
    layout: Layout,
    row_of: Callable[[Winner], dict[str, Any]],
    about: Mapping[str, str],
) -> tuple[Path, Path, Content, str, dict[str, Any], list[int]]:
    """Return a file's fields, in their order."""
    newest = max(winners, key=lambda winner: winner.published_at)
    problem, environment = newest.problem, newest.environment
    path = layout.path(problem, environment.triton)
    sidecar = layout.sidecar(path)
    # A file holds for one version of the kernels. Winners for other versions are out of date.
    rows = {
        winner.entry.point.batch_size: row_of(winner)
        for winner in winners
        if _of_kernels(winner.environment) == _of_kernels(environment)
    }
    for size, row in _measured_earlier(path, sidecar, newest, about).items():
        if size not in rows or not _is_measured(rows[size]):
            rows[size] = row
    sizes = sorted(rows)
    content = Content(
        problem,
        environment,
        entries={size: Config(rows[size]["config"]) for size in sizes},
        statuses={size: Status(rows[size]["status"]) for size in sizes},
    )
    text = layout.text(content)
    provenance = {
        **sidecar_fields(path.name, text),
        "problem": problem.spec(),
        **about,
        "entries": {str(size): rows[size] for size in sizes},
    }
    missing = [size for size in layout.sizes(problem, environment.triton) if size not in rows]
    return path, sidecar, content, text, provenance, missing


def _is_measured(row: Mapping[str, Any]) -> bool:
    """Say whether a row was measured, or is the engine's because its entry was measured as
    faster.
    """
    if row["status"] == Status.INCUMBENT.value:
        return any(one["status"] == Status.OK.value for one in row["incumbents"].values())
    return bool(row["status"] == Status.OK.value)


def _of_kernels(environment: Environment) -> dict[str, Any]:
    return {name: getattr(environment, name) for name in _OF_KERNELS}


def _measured_earlier(
    path: Path, sidecar: Path, newest: Winner, about: Mapping[str, str]
) -> dict[int, dict[str, Any]]:
    """Return the measured rows of an existing sidecar for the newest kernels; empty if the sidecar
    is not ours.

    Raises ExportRefused if the file is of another problem or another card, whose servers read it
    too.
    """
    provenance = read_sidecar(path, sidecar) or {}
    now = _of_kernels(newest.environment)
    wanted = newest.problem.spec(), newest.environment.device
    try:
        rows: dict[int, dict[str, Any]] = {int(k): v for k, v in provenance["entries"].items()}
        found = {(provenance["problem"], row["environment"]["device"]) for row in rows.values()}
        kept = {
            size: row
            for size, row in rows.items()
            if row["status"] == Status.OK.value
            and all(provenance[name] == value for name, value in about.items())
            and all(row["environment"][name] == value for name, value in now.items())
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    for spec, device in found - {wanted}:
        raise ExportRefused(
            f"{path} is of {spec} on {device}, and servers of both would read it: export to "
            "another folder, or undo that export first"
        )
    return kept
