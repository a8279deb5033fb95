"""Do random operations on a queue by eight threads at once, and compare it with what it promised.

Run from the repository's root, with the dev dependency group installed:
    .venv/bin/python benchmarks/chaos_queue.py [--seconds 300 --seed 0]
Half of the time is for PostgreSQL, of which it starts its own, and half for SQLite. Exit 1 if a
promise was broken; the message names the round and the seed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "service")]

from queue_driver import OPERATIONS, Broken, drive  # noqa: E402
from servers import started_postgres  # noqa: E402

from tuner.store.database import Database  # noqa: E402


def rounds(seconds: float) -> Iterator[int]:
    """Numbers of rounds, until the time is over."""
    ends_at, number = time.monotonic() + seconds, 0
    while time.monotonic() < ends_at:
        yield number
        number += 1


def drive_for(seconds: float, url: str, seed: int) -> Counter[str]:
    """Drive the queue of one database. Raises Broken."""
    with Database.open(url) as store:
        return drive(store, seed, rounds(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-queue-") as folder, started_postgres() as server:
        postgres = server.url.render_as_string(hide_password=False)
        for name, url in (("PostgreSQL", postgres), ("SQLite", f"sqlite:///{folder}/tuner.db")):
            try:
                done = drive_for(options.seconds / 2, url, options.seed)
            except Broken as error:
                print(f"BROKEN on {name}: {error}", file=sys.stderr)
                return 1
            print(f"{name}: {sum(done[name] for name in OPERATIONS)} operations, no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
