"""Fills a store with jobs, trials and winners, as years of use would.

`python benchmarks/fill_store.py [--jobs 100000] [--trials 5000000]`, into TUNER_DATABASE_URL, which
must be an empty store. Rows are made by the database itself where that is possible.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import Connection, insert, text

from tuner.devices.table import devices
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.jobs.job import JobRequest, JobState, Priority
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Point
from tuner.problems.records import RunKey
from tuner.problems.results import Environment, MeasureKind
from tuner.store import Store, database_url
from tuner.store.job_rows import new_job_row
from tuner.store.job_tables import job_events, jobs
from tuner.store.rows import environment_row, run_row
from tuner.store.tables import environments, problems, runs

VERSIONS = ("0.5.12", "0.5.16")
PROBLEMS = 200
TRIALS_A_RUN = 250
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MODELS = ("deepseek-r1", "qwen3-235b-a22b", "mixtral-8x7b", "glm-4.5", "kimi-k2")

_CONFIG = json.dumps(
    {
        "BLOCK_SIZE_M": 16,
        "BLOCK_SIZE_N": 64,
        "BLOCK_SIZE_K": 128,
        "GROUP_SIZE_M": 1,
        "num_warps": 4,
        "num_stages": 3,
    }
)
_INCUMBENTS = json.dumps(
    {
        "default": {
            "config": {"BLOCK_SIZE_M": 64, "num_warps": 4, "num_stages": 2},
            "status": "ok",
            "median_us": 14.5,
            "shared_bytes": 49152,
        }
    }
)
_TRIALS = """
INSERT INTO trials (run_id, part, batch_size, config_key, config, compile_status, shared_bytes,
    n_regs, n_spills, compile_detail, cached, status, median_us, min_us, samples, detail)
SELECT runs.id, CASE WHEN n.i % 2 = 0 THEN 'up' ELSE 'down' END, 1 << ((n.i / 2) % 13),
    'BLOCK_SIZE_K=128,BLOCK_SIZE_M=16,BLOCK_SIZE_N=' || (n.i * 16) ||
        ',GROUP_SIZE_M=1,num_stages=3,num_warps=4',
    CAST('{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": ' || (n.i * 16) ||
        ', "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}' AS JSON),
    'ok', 49152, 64, 0, '', :no, 'ok', 10.0 + n.i, 9.0 + n.i, 20, ''
FROM runs CROSS JOIN n
"""
_WINNERS = """
INSERT INTO winners (problem_id, environment_id, status, batch_size, part, run_id, config,
    median_us, compile_status, shared_bytes, n_regs, n_spills, compile_detail, cached, incumbents,
    without_us, over, over_us, reason, published_at)
SELECT runs.problem_id, runs.environment_id, 'ok', s.size, g.part, min(runs.id),
    CAST(:config AS JSON),
    12.5, 'ok', 49152, 64, 0, '', :no,
    CAST(:incumbents AS JSON), 'default', 'default', 14.5,
    '14 % faster than default', min(runs.created_at)
FROM runs CROSS JOIN (SELECT DISTINCT batch_size AS size FROM sizes) s
    CROSS JOIN (SELECT 'up' AS part UNION ALL SELECT 'down') g
GROUP BY runs.problem_id, runs.environment_id, s.size, g.part
ORDER BY min(runs.id), s.size
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--trials", type=int, default=5_000_000)
    options = parser.parse_args()
    started = time.monotonic()
    counts = fill(database_url(os.environ), options.jobs, options.trials)
    print(json.dumps({**counts, "seconds": round(time.monotonic() - started)}))


def fill(url: str, n_jobs: int, n_trials: int) -> dict[str, int]:
    """Fill an empty store; the rows of each table."""
    n_runs = n_trials // TRIALS_A_RUN
    with Store.open(url) as store:
        with store._write() as connection:
            assert not connection.execute(text("SELECT count(*) FROM jobs")).scalar()
            keys = list(itertools.islice(run_keys(), n_runs))
            add_runs(connection, keys)
            add_jobs(connection, keys, n_jobs)
            add_trials(connection)
        with store._engine.connect() as connection:
            # As PostgreSQL does by itself, within minutes.
            tidy = "VACUUM ANALYZE" if connection.dialect.name == "postgresql" else "ANALYZE"
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(tidy))
            tables = ("environments", "problems", "runs", "trials", "winners", "jobs", "job_events")
            return {
                table: int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() or 0)  # noqa: S608
                for table in tables
            }


def run_keys() -> Iterator[RunKey]:
    """Runs of every problem on every device and engine, then again with other seeds."""
    some = [
        FusedMoe(64 + 8 * i, 64 * (1 + i % 8), 7168, 8, Dtype.FP8_W8A8, (64, 64))
        for i in range(PROBLEMS)
    ]
    places = [
        Environment(device.name, "sglang", version, "3.6.0", "ab" * 32, "2.11.0", "13.0", "580.1")
        for device in devices()[:30]
        for version in VERSIONS
    ]
    for seed in itertools.count():
        for problem, place in itertools.product(some, places):
            points = (Point(1, Gemm.UP),)
            yield RunKey(problem, place, MeasureKind.GPU, "standard", seed, points, "sglang")


def add_runs(connection: Connection, keys: list[RunKey]) -> None:
    places = list(dict.fromkeys(key.environment for key in keys))
    specs = list(dict.fromkeys(key.problem for key in keys))
    place_ids = {place: i + 1 for i, place in enumerate(places)}
    spec_ids = {spec: i + 1 for i, spec in enumerate(specs)}
    connection.execute(insert(environments), [environment_row(place) for place in places])
    rows = [{"spec": spec.spec(), "family": spec.family} for spec in specs]
    connection.execute(insert(problems), rows)
    connection.execute(
        insert(runs),
        [
            {
                **run_row(key),
                "problem_id": spec_ids[key.problem],
                "environment_id": place_ids[key.environment],
                "state": "done",
                "reason": "",
                "totals": {"measurements": TRIALS_A_RUN},
                "created_at": START + timedelta(minutes=i),
                "updated_at": START + timedelta(minutes=i + 5),
            }
            for i, key in enumerate(keys)
        ],
    )


def add_jobs(connection: Connection, keys: list[RunKey], n_jobs: int) -> None:
    for start in range(0, n_jobs, 5000):
        numbers = range(start, min(start + 5000, n_jobs))
        rows = [job_row(keys[i % len(keys)], i, n_jobs, i % len(keys) + 1) for i in numbers]
        connection.execute(insert(jobs), rows)
        steps = ("submitted", "leased", "running", "done")
        events = [
            {"job_id": row["id"], "seq": n + 1, "kind": kind, "at": row["created_at"], "data": {}}
            for row in rows
            for n, kind in enumerate(steps)
        ]
        connection.execute(insert(job_events), events)


def job_row(key: RunKey, number: int, n_jobs: int, run_id: int) -> dict[str, Any]:
    at = START + timedelta(minutes=number)
    request = JobRequest(
        key.problem, key.environment.device, seed=number, model=MODELS[number % len(MODELS)]
    )
    row = new_job_row(request, Priority.NORMAL, "team", at)
    waiting = number >= n_jobs - 2000  # the newest still wait
    state = JobState.QUEUED if waiting else JobState.FAILED if number % 50 == 0 else JobState.DONE
    ended = {"finished_at": at, "attempts": 1, "run_id": run_id}
    return {
        **row,
        "state": state.value,
        "event_count": 4,
        **(dict.fromkeys(("finished_at", "run_id")) if waiting else ended),
    }


def add_trials(connection: Connection) -> None:
    sizes = " UNION ALL ".join(f"SELECT {size} AS batch_size" for size in BATCH_SIZES)
    numbers = f"SELECT 0 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {TRIALS_A_RUN - 1}"  # noqa: S608
    cast = "JSON" if connection.dialect.name == "postgresql" else "TEXT"
    for statement, tables in (
        (_TRIALS, f"WITH RECURSIVE n(i) AS ({numbers})"),
        (_WINNERS, f"WITH sizes AS ({sizes})"),
    ):
        made = statement.replace("AS JSON)", f"AS {cast})")
        head, select = made.split("SELECT", 1)
        query = text(f"{head} {tables} SELECT {select}")
        given = {"no": False, "config": _CONFIG, "incumbents": _INCUMBENTS}
        connection.execute(query, {name: given[name] for name in query._bindparams})


if __name__ == "__main__":
    main()
