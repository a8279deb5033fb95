"""What Prometheus reads of the service, its processes, and rows of workers."""

import http.client
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from api_server import Server
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from tuner.store.database import utc_now
from tuner.store.leases import Leases
from tuner.store.tables import workers


class Scrape:
    """The metrics of one scrape."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.families, f"{family.name} has two blocks"
            self.families[family.name] = family

    def value(self, name: str, **labels: str) -> float | None:
        """A sample's value; None where there is no such sample."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) < 2
        return found[0] if found else None


def scrape(server: Server) -> Scrape:
    answer = server.call("GET", "/metrics")
    assert answer.status == 200
    return Scrape(answer.body.decode())


def scrape_port(port: int) -> Scrape | None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("GET", "/metrics")
        except OSError:
            return None  # it does not listen yet
        return Scrape(connection.getresponse().read().decode())


def fleet(*options: str) -> list[str]:
    """The command of `tuner worker`."""
    return [sys.executable, "-c", "from tuner.cli import main; main()", "worker", *options]


def beat(folder: Path) -> list[str]:
    """The command of beat, which keeps its schedule in that folder."""
    command = [sys.executable, "-m", "celery", "--app", "workers.app", "beat"]
    return [*command, "--schedule", str(folder / "beat")]


@contextmanager
def running(command: list[str], environ: dict[str, str]) -> Iterator[Popen[bytes]]:
    """A process that is asked to end with the block."""
    process = Popen(command, env={**os.environ, **environ})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def add_worker(leases: Leases, number: int, **values: Any) -> None:
    """A row of a living worker of an L40S, but for the given values."""
    now = utc_now()
    row = {
        "id": f"worker-{number}",
        "name": f"worker-{number}",
        "host": "host",
        "gpu": "",
        "device": "NVIDIA_L40S",
        "devices": None,
        "engines": ["sglang==0.5.16"],
        "packages": {},
        "state": "active",
        "reason": "",
        "drain": False,
        "started_at": now,
        "seen_at": now,
    }
    with leases.database.write() as connection:
        connection.execute(insert(workers), {**row, **values})
