"""What chaos.py does to its PostgreSQL: counts what is published, sets its clock, fills its disk.

The queue asks the database for the time: `SELECT clock_timestamp()`. Here the database has a
function of that name of its own, in a schema that comes before pg_catalog in its search_path. It
adds what a table says to the time of day. So the queue's clock jumps, and nothing else's.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from sqlalchemy import text

from tuner.store.jobs import JobStore

DISK_MIB = 512
BALLAST = "ballast"
_CHUNKS = [1 << bits for bits in range(26, 11, -1)]  # 64 MiB to 4 KiB

# PostgreSQL itself notes every publishing of a run and each step of a job, whatever our own code
# says of it, at the time of day.
_WATCH = """
CREATE TABLE chaos_published (
    run_id integer, at timestamptz DEFAULT pg_catalog.clock_timestamp()
);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'done' THEN INSERT INTO chaos_published (run_id) VALUES (NEW.id); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_watch AFTER UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION chaos_note();

CREATE TABLE chaos_steps (
    job_id text, seq integer, at timestamptz DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (job_id, seq)
);
CREATE FUNCTION chaos_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_steps (job_id, seq) VALUES (NEW.job_id, NEW.seq);
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_steps AFTER INSERT ON job_events FOR EACH ROW
WHEN (NEW.kind <> 'trials') EXECUTE FUNCTION chaos_step();

CREATE TABLE chaos_clock (ahead interval NOT NULL);
INSERT INTO chaos_clock VALUES ('0');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + ahead FROM public.chaos_clock';
"""


def prepare(jobs: JobStore) -> None:
    """Have the database count what is published, and follow a clock that can be set."""
    with jobs.database.write() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(_WATCH))
        path = f"ALTER DATABASE {name} SET search_path = public, pg_catalog"
        connection.execute(text(path))
    jobs.database.engine.dispose()  # new connections have the new search_path


def set_clock(jobs: JobStore, ahead: timedelta) -> None:
    """Set the queue's clock. Raises UnusableStore."""
    with jobs.database.write() as connection:
        connection.execute(text("UPDATE chaos_clock SET ahead = :ahead"), {"ahead": ahead})


class NoDisk(Exception):
    """A small file system cannot be mounted."""


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[None]:
    """A file system of DISK_MIB at a new folder. Raises NoDisk."""
    at.mkdir()
    # PostgreSQL refuses to be root, and the tests then run it as nobody.
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    options = f"size={DISK_MIB}m,mode=0700,uid={owner.pw_uid},gid={owner.pw_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoDisk(getattr(error, "stderr", "") or str(error)) from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left on a file system."""
    with (disk / BALLAST).open("ab") as ballast:
        for chunk in _CHUNKS:
            with contextlib.suppress(OSError):  # no room for so much
                while True:
                    size = ballast.seek(0, os.SEEK_END)
                    os.posix_fallocate(ballast.fileno(), size, chunk)


def empty(disk: Path) -> None:
    """Give the room back."""
    (disk / BALLAST).unlink(missing_ok=True)
