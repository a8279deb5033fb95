"""Convert rows to dataclasses and back. Sizes are in bytes, times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from sqlalchemy import RowMapping

from tuner.errors import BadInput
from tuner.problems.points import Candidate, Config, Point, read_server
from tuner.problems.registry import parse_problem, read_part
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    Measurement,
    Run,
    RunKey,
    RunState,
    Status,
    Totals,
    Trial,
    Winner,
    incumbent_json,
    point_row,
)
from tuner.tuning.gains import reference

Row = Mapping[str, Any] | RowMapping  # of a table, or of a result's JSON
ENVIRONMENT_FIELDS = tuple(field.name for field in fields(Environment))


def environment_row(environment: Environment) -> dict[str, Any]:
    return {"fingerprint": environment.fingerprint, **asdict(environment)}


def read_environment(row: Row) -> Environment:
    return Environment(**{name: row[name] for name in ENVIRONMENT_FIELDS})


def run_row(key: RunKey) -> dict[str, Any]:
    return {
        "fingerprint": key.fingerprint,
        "measure": key.measure.value,
        "effort": key.effort,
        "seed": key.seed,
        "points": [point_row(point) for point in key.points],
        "space": key.space,
        "recording": key.recording,
        "routing": key.routing,
    }


def read_key(row: Row) -> RunKey:
    return RunKey(
        problem=parse_problem(row["spec"]),
        environment=read_environment(row),
        measure=MeasureKind(row["measure"]),
        effort=row["effort"],
        seed=row["seed"],
        points=tuple(
            Point(size, read_part(part), *tokens) for size, part, *tokens in row["points"]
        ),
        space=row["space"],
        recording=row["recording"],
        routing=row["routing"],
    )


def read_run(row: RowMapping) -> Run:
    return Run(
        id=row["id"],
        key=read_key(row),
        state=RunState(row["state"]),
        reason=row["reason"],
        totals=None if row["totals"] is None else Totals(**row["totals"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def trial_row(run_id: int, trial: Trial) -> dict[str, Any]:
    point, config = trial.candidate.point, trial.candidate.config
    return {
        "run_id": run_id,
        **_point_columns(point),
        "backend": trial.candidate.backend,
        "config_key": config.key,
        "config": dict(config),
        **_compiled_row(trial.compiled),
        "status": trial.measurement.status.value,
        "median_us": trial.measurement.median_us,
        "min_us": trial.measurement.min_us,
        "samples": trial.measurement.samples,
        "detail": storable(trial.measurement.detail),
    }


def read_trial(row: RowMapping) -> Trial:
    return Trial(
        candidate=Candidate(_read_point(row), Config(row["config"]), row["backend"]),
        compiled=_read_compiled(row),
        measurement=Measurement(
            status=Status(row["status"]),
            median_us=row["median_us"],
            min_us=row["min_us"],
            samples=row["samples"],
            detail=row["detail"],
        ),
    )


def entry_row(entry: Entry) -> dict[str, Any]:
    over = reference(entry)
    return {
        "status": entry.status.value,
        **_point_columns(entry.point),
        "config": dict(entry.config),
        "median_us": entry.median_us,
        **_compiled_row(entry.compiled),
        "incumbents": {name: incumbent_json(one) for name, one in entry.incumbents.items()},
        "without_us": entry.without_us,
        "server": entry.server.as_json(),
        "over": over.name,
        "over_us": over.median_us,
        "reason": storable(entry.reason),
    }


def read_entry(row: Row) -> Entry:
    return Entry(
        point=_read_point(row),
        config=Config(row["config"]),
        status=Status(row["status"]),
        median_us=row["median_us"],
        compiled=_read_compiled(row),
        incumbents={name: _read_incumbent(one) for name, one in row["incumbents"].items()},
        reason=row["reason"],
        without_us=row["without_us"],
        server=read_server(row["server"]),
    )


def read_winner(row: RowMapping) -> Winner:
    return Winner(
        problem=parse_problem(row["spec"]),
        environment=read_environment(row),
        entry=read_entry(row),
        run_id=row["run_id"],
        published_at=row["published_at"],
    )


def is_readable(spec: str) -> bool:
    """Say whether this release knows a stored problem: a newer release may have others."""
    try:
        parse_problem(spec)
    except BadInput:
        return False
    return True


def storable(text: str) -> str:
    """Replace characters that PostgreSQL or UTF-8 cannot hold: a crash may print them."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _point_columns(point: Point) -> dict[str, Any]:
    return {**asdict(point), "part": point.part.value}


def _read_point(row: Row) -> Point:
    tokens = row["new_tokens"], row["cached_tokens"]
    return Point(row["batch_size"], read_part(row["part"]), *tokens)


@lru_cache(maxsize=1024)  # most runs publish the same points
@lru_cache(maxsize=1024)  # most problems are tuned at the same points
def read_points(text: str) -> frozenset[Point]:
    """Parse "part batch_size new_tokens cached_tokens" items, separated by commas."""
    found = (point.split() for point in text.split(","))
    return frozenset(Point(int(m), read_part(part), int(n), int(c)) for part, m, n, c in found)


def _compiled_row(compiled: Compiled) -> dict[str, Any]:
    return {
        "compile_status": compiled.status.value,
        "shared_bytes": compiled.shared_bytes,
        "n_regs": compiled.n_regs,
        "n_spills": compiled.n_spills,
        "compile_detail": storable(compiled.detail),
        "cached": compiled.cached,
    }


def _read_compiled(row: Row) -> Compiled:
    return Compiled(
        status=Status(row["compile_status"]),
        shared_bytes=row["shared_bytes"],
        n_regs=row["n_regs"],
        n_spills=row["n_spills"],
        detail=row["compile_detail"],
        cached=row["cached"],
    )


def _read_incumbent(row: Mapping[str, Any]) -> Incumbent:
    return Incumbent(
        config=Config(row["config"]),
        status=Status(row["status"]),
        median_us=row["median_us"],
        shared_bytes=row["shared_bytes"],
        backend=row["backend"],
    )
