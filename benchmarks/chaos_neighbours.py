"""The commands that run beside the service on one SQLite file, and what became of the file.

On a server's file, other programs come and go: each opens the store, and closes it. The last one to
close it deletes the log; a process that takes itself for the last one deletes the log of others.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore

TUNER = Path(sys.executable).with_name("tuner")
WATCHES = """[[watch]]
models = ["deepseek-r1"]
devices = ["L40S"]
tp = [32]
dtypes = ["int8_w8a8"]
"""
TUNE = "tune deepseek-r1 --tp 32 --dtype int8_w8a8 --device L40S --measure predict --effort quick"
COMMANDS = {
    "keys create": "admin keys create neighbour-{number} --scope read",
    "keys list": "admin keys list",
    "jobs": "jobs",
    "coverage": "nightly coverage",
    "nightly run": "nightly run --dry-run --watch-list {home}/watches.toml",
    "export": "export --device L40S --allow-predicted --out {home}/exported-{lane}",
    "tune": TUNE + " --batch-sizes 1{number}",
}
LOOKS = 3  # whoever has a deleted file open for so many looks does not just close it
JOIN_S = 300.0


@dataclass
class Said:
    """What the commands did, and what was seen of the file."""

    runs: Counter[str] = field(default_factory=Counter)  # that nobody harmed
    harmed: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)  # though nobody harmed them
    keys: list[str] = field(default_factory=list)  # that were printed
    keys_lost: int = 0
    deleted: Counter[str] = field(default_factory=Counter)  # process and file -> looks
    integrity: str = ""
    complete: bool = False  # all harm was done

    @property
    def held_deleted(self) -> list[str]:
        """The processes that went on in a deleted file."""
        return [one for one, looks in self.deleted.items() if looks >= LOOKS]


def open_files() -> Iterator[tuple[str, str]]:
    """(process id, file) of what is open on this machine, as far as this user may see it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):  # the file was closed
                    yield folder.name, str(link.readlink())


class Neighbours:
    """Run COMMANDS one after the other without a pause, on several lanes at a time.

    Every second run of each command is killed or gets SIGTERM, before it has run for as long as the
    last one that was left alone.
    """

    def __init__(
        self, file: Path, environ: Mapping[str, str], lanes: int, blows: int, dice: random.Random
    ) -> None:
        self.said = Said()
        self._file, self._environ, self._blows, self._dice = file, dict(environ), blows, dice
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._started: Counter[str] = Counter()
        self._took: dict[str, float] = {}
        self._over = threading.Event()
        self._lanes = [
            threading.Thread(target=self._run_lane, args=(lane,), daemon=True)
            for lane in range(lanes)
        ]

    def start(self) -> None:
        """Tune once, so that there is something to export, and begin."""
        (self._file.parent / "watches.toml").write_text(WATCHES)
        self._run("tune", 0, 0)
        for lane in self._lanes:
            lane.start()

    def stop(self) -> None:
        """Start no further command."""
        self._over.set()

    def end(self) -> None:
        """Stop, and return when the last command has ended."""
        self.stop()
        for lane in self._lanes:
            if lane.is_alive():
                lane.join(JOIN_S)

    @property
    def running(self) -> bool:
        return any(lane.is_alive() for lane in self._lanes)

    def look(self, *, over: bool) -> None:
        """Note which processes have a deleted file of the store open.

        If other harm is `over`, stop as soon as each command ran and `blows` were harmed.
        """
        with self._lock:
            done = self.said.harmed.total() >= self._blows
            done = done and self.said.runs.keys() >= COMMANDS.keys()
        if over and done:
            self.stop()
        for pid, name in open_files():
            if name.startswith(str(self._file)) and name.endswith(" (deleted)"):
                self.said.deleted[f"{pid} {name}"] += 1

    def judge(self, jobs: JobStore) -> Said:
        """Look for the keys that were printed, and have SQLite check the file."""
        self.said.complete = self._over.is_set()
        self.end()
        keys = KeyStore(jobs.database)
        self.said.keys_lost = sum(keys.find(token) is None for token in self.said.keys)
        with jobs.database.read() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
            self.said.integrity = "; ".join(map(str, found))
        return self.said

    def _run_lane(self, lane: int) -> None:
        while not self._over.is_set():
            with self._lock:
                number = next(self._numbers)
            self._run(list(COMMANDS)[number % len(COMMANDS)], number, lane)

    def _run(self, name: str, number: int, lane: int) -> None:
        with self._lock:
            self._started[name] += 1
            took_s = self._took.get(name, 1.0)
            after_s = None if self._started[name] % 2 else self._dice.uniform(0, took_s)
            how = self._dice.choice((signal.SIGKILL, signal.SIGTERM))
        words = COMMANDS[name].format(number=number, lane=lane, home=self._file.parent).split()
        began, harmed = time.monotonic(), False
        process = subprocess.Popen(
            [TUNER, *words],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            harmed = True
            out, err = process.communicate()
        with self._lock:
            if harmed:
                self.said.harmed[name] += 1
            else:
                self.said.runs[name] += 1
                self._took[name] = time.monotonic() - began
                if process.returncode:
                    self.said.failed.append(f"{' '.join(words)}: {err.strip()[-300:]}")
            if name == "keys create" and out.endswith("\n"):
                self.said.keys.append(out.strip())
