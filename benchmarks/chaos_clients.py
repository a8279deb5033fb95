"""The clients of chaos.py: they post jobs over HTTP until each is accepted, as a sound client does.

Each job has an idempotency key, which goes with every try. A try that brings no answer, a 5xx, 409
or 429 is made again; 202 is a promise; anything else is not to happen, and is kept as `wrong`.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from worker_processes import PROBLEM

AT_ONCE = 0.1  # of the jobs are posted by two connections at the same time
AGAIN = 0.1  # of them once more when they were accepted long ago, or just now
PAUSE_S = 0.5  # before a request is sent again, unless the answer says how long
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Work:
    """What the clients ask for."""

    port: int
    device: str
    measure: str
    batch_sizes: tuple[int, ...]

    def body(self, seed: int) -> bytes:
        values = {
            "model": PROBLEM.spec(),
            "device": self.device,
            "measure": self.measure,
            "batch_sizes": list(self.batch_sizes),
            "effort": "quick",
            "seed": seed,
        }
        return json.dumps(values).encode()


@dataclass
class Promises:
    """What the service has answered, to all clients."""

    accepted: dict[int, str] = field(default_factory=dict)  # seed -> job id
    created: Counter[int] = field(default_factory=Counter)  # seed -> answers "this is a new job"
    contradictions: int = 0  # one key, two jobs
    forgotten: int = 0  # answers that did not know a key which had been accepted
    unkeyed: int = 0  # answers with a job that was there, but under no key
    tried_again: Counter[str] = field(default_factory=Counter)  # by what had come instead of 202
    wrong: list[str] = field(default_factory=list)  # answers that no client could make good
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, seed: int, answer: dict[str, Any], replayed: bool, *, known: bool) -> None:
        """Note a 202; `known`: one had come before this request was sent."""
        with self.lock:
            self.created[seed] += answer["created"]
            self.contradictions += self.accepted.setdefault(seed, answer["id"]) != answer["id"]
            self.forgotten += known and not replayed
            self.unkeyed += not (replayed or answer["created"])


class Client:
    """One client, with a key of its own to the API."""

    def __init__(self, number: int, token: str, work: Work, to: Promises) -> None:
        self._name, self._token, self._work, self._to = f"client-{number}", token, work, to

    def run(self, seeds: list[int], pause_s: float, dice: random.Random) -> None:
        """Post a job for each seed, `pause_s` apart on average."""
        with ThreadPoolExecutor(2) as pool:
            for number, seed in enumerate(seeds):
                time.sleep(dice.uniform(0, 2 * pause_s))
                tries = 2 if dice.random() < AT_ONCE else 1
                for done in [pool.submit(self._insist, seed) for _ in range(tries)]:
                    done.result()
                if dice.random() < AGAIN:
                    self._insist(dice.choice(seeds[: number + 1]))

    def _insist(self, seed: int) -> None:
        known = seed in self._to.accepted
        while True:
            status, headers, body = self._post(seed)
            if status == 202:
                replayed = headers.get("idempotent-replayed") == "true"
                self._to.take(seed, json.loads(body), replayed, known=known)
                return
            said = str(status) if status else "no answer"
            if status and status < 500 and status not in (409, 429):
                self._to.wrong.append(f"{said}: {body[:300].decode(errors='replace')}")
                return
            with self._to.lock:
                self._to.tried_again[said] += 1
            time.sleep(float(headers.get("retry-after", PAUSE_S)))

    def _post(self, seed: int) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; status 0 where no whole answer came."""
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{self._name}-{seed}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._work.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/v1/jobs", self._work.body(seed), headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, {}, b""
        finally:
            connection.close()


def start_clients(
    tokens: list[str], jobs: int, work: Work, pause_s: float, seed: int, to: Promises
) -> list[threading.Thread]:
    """A thread a token; together they post `jobs` jobs, the seeds from 0."""
    threads = [
        threading.Thread(
            target=Client(number, token, work, to).run,
            args=(
                list(range(number, jobs, len(tokens))),
                pause_s,
                random.Random(f"{seed}-{number}"),
            ),
            daemon=True,
        )
        for number, token in enumerate(tokens)
    ]
    for thread in threads:
        thread.start()
    return threads
