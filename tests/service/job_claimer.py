"""A process that claims jobs until none is left, and prints their ids.

`python job_claimer.py URL` prints "ready" and waits for a line before it begins.
"""

import sys

from tuner.jobs.job import JobFilter
from tuner.store.leases import Leases


def main(url: str) -> None:
    with Leases.open(url) as leases:
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        while lease := leases.claim([JobFilter(needs_gpu=False)], owner="claimer"):
            print(lease.job_id, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
