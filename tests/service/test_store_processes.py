"""Several processes on one store, and processes that are killed."""

import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from databases import both_databases
from sqlalchemy import text
from store_writer import BATCH, KEY, number_of
from tiers import only

from tuner.store.connect import connect
from tuner.store.database import Database
from tuner.store.results import ResultStore

WRITER = Path(__file__).with_name("store_writer.py")


def start(url: str, batches: int) -> subprocess.Popen[str]:
    """A writer that loads everything and then waits for `go`."""
    return subprocess.Popen(
        [sys.executable, WRITER, url, str(batches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()


def finish(process: subprocess.Popen[str], batches: int) -> None:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.split() == [str(number) for number in range(batches)]


def stored(url: str) -> list[int]:
    with Database.open(url) as store:
        return [
            number_of(trial)
            for trial in ResultStore(store).trials(ResultStore(store).begin_run(KEY))
        ]


@both_databases
def test_processes_make_and_write_one_store_at_once(empty_store_url):
    batches = 20
    writers = [start(empty_store_url, batches) for _ in range(3)]
    go(*writers)
    for writer in writers:
        finish(writer, batches)
    assert sorted(stored(empty_store_url)) == list(range(batches * BATCH))


@pytest.mark.parametrize(
    ("database", "acknowledged"),
    only([("sqlite", 0), ("postgresql", 17)], product(["sqlite", "postgresql"], [0, 1, 17])),
)
def test_a_killed_writer_loses_nothing_it_was_told_was_stored(empty_store_url, acknowledged):
    with start(empty_store_url, batches=10**6) as writer:
        go(writer)
        assert writer.stdout
        for number in range(acknowledged):
            assert writer.stdout.readline() == f"{number}\n"
        writer.kill()  # while it stores the next batch, or opens the store
    assert writer.returncode == -signal.SIGKILL

    killed = Counter(number // BATCH for number in stored(empty_store_url))
    assert set(killed) >= set(range(acknowledged))
    assert set(killed.values()) <= {BATCH}  # whole batches only

    batches = len(killed) + 2
    resumed = start(empty_store_url, batches)
    go(resumed)
    finish(resumed, batches)
    assert sorted(stored(empty_store_url)) == list(range(batches * BATCH))  # each trial once
    if empty_store_url.startswith("sqlite"):
        engine = connect(empty_store_url)
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
        engine.dispose()
