"""A process that is in the middle of a submission until it is told to go on.

`python job_submitter.py URL SEED KEY` prints "inside" within the transaction, waits for a line,
commits and prints the job's id.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from store_writer import PROBLEM

from tuner.jobs.job import JobRequest, Priority
from tuner.problems.registry import family_of
from tuner.store.database import utc_now
from tuner.store.jobs import JobStore

BODY = "of the submitter"


def submitter_request(seed: int) -> JobRequest:
    everything = family_of(PROBLEM).read_selection(PROBLEM, {})
    return JobRequest(PROBLEM, "NVIDIA_L40S", everything, measure="predict", seed=seed)


@contextmanager
def submitting(url: str, key: str, seed: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Such a process, inside; it is killed at the end, if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, __file__, url, str(seed), key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout and process.stdout.readline() == "inside\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> str:
    """The id of the job that it has then committed."""
    said, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    return said.strip()


def wait_inside() -> datetime:
    """The clock, which `submit` reads in its transaction."""
    print("inside", flush=True)  # noqa: T201
    sys.stdin.readline()
    return utc_now()


def main(url: str, seed: str, key: str) -> None:
    with JobStore.open(url) as opened:
        jobs = JobStore(opened.database, wait_inside)
        wanted = [(submitter_request(int(seed)), Priority.NORMAL)]
        (answer,) = jobs.submit_all(wanted, idempotency_key=key, body_hash=BODY)
        print(answer.job.id)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
