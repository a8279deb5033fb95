"""The clients of chaos.py: they post jobs over HTTP until each is accepted, as a sound client does.

They post single jobs and batches. Each submission has an idempotency key, which goes with every
try. A try that brings no answer, a 5xx, 409 or 429 is made again, and so is one with a key that was
replaced meanwhile. 202, or 200 for a batch, is a promise; anything else is not to happen, and is
kept as `wrong`.
"""

from __future__ import annotations

import http.client
import json
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from worker_processes import PROBLEM

BATCHES = 0.15  # of the submissions are batches
BATCH_JOBS = (2, 8)
AT_ONCE = 0.1  # of the submissions are posted by two connections at the same time
AGAIN = 0.1  # of them once more when they were accepted long ago, or just now
PAUSE_S = 0.5  # before a request is sent again, unless the answer says how long
TIMEOUT_S = 30.0
UNKNOWN_KEYS = 10  # answers in a row that an API key is unknown, while it is being replaced


@dataclass(frozen=True)
class Work:
    """What the clients ask for."""

    port: int
    device: str
    measure: str
    batch_sizes: tuple[int, ...]

    def job(self, seed: int) -> dict[str, Any]:
        return {
            "model": PROBLEM.spec(),
            "device": self.device,
            "measure": self.measure,
            "batch_sizes": list(self.batch_sizes),
            "effort": "quick",
            "seed": seed,
        }


@dataclass
class Promises:
    """What the service has answered, to all clients."""

    accepted: dict[int, str] = field(default_factory=dict)  # seed -> job id
    created: Counter[int] = field(default_factory=Counter)  # seed -> answers "this is a new job"
    contradictions: int = 0  # one key, two jobs
    forgotten: int = 0  # answers that did not know a key which had been accepted
    unkeyed: int = 0  # answers with a job that was there, but under no key
    batches: int = 0  # submissions of several jobs
    tried_again: Counter[str] = field(default_factory=Counter)  # by what had come instead
    wrong: list[str] = field(default_factory=list)  # answers that no client could make good
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, seed: int, answer: dict[str, Any], replayed: bool, *, known: bool) -> None:
        """Note an accepted job; `known`: it was accepted before this request was sent."""
        with self.lock:
            self.created[seed] += answer["created"]
            self.contradictions += self.accepted.setdefault(seed, answer["id"]) != answer["id"]
            self.forgotten += known and not replayed
            self.unkeyed += not (replayed or answer["created"])


class Tokens:
    """The clients' keys to the API, which may be replaced at any time."""

    def __init__(self, count: int) -> None:
        self._tokens = [self.make() for _ in range(count)]

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, client: int) -> str:
        return self._tokens[client]

    def __setitem__(self, client: int, token: str) -> None:
        self._tokens[client] = token

    @staticmethod
    def make() -> str:
        return "chaos_" + secrets.token_urlsafe(32)


def client_name(number: int) -> str:
    """The name of a client's key."""
    return f"client-{number}"


class Client:
    """One client, with a key of its own to the API."""

    def __init__(self, number: int, tokens: Tokens, work: Work, to: Promises) -> None:
        self._number, self._tokens, self._work, self._to = number, tokens, work, to

    def run(self, seeds: Sequence[int], pause_s: float, dice: random.Random) -> None:
        """Post a job for each seed, `pause_s` apart on average."""
        done: list[Sequence[int]] = []
        with ThreadPoolExecutor(2) as pool:
            while seeds:
                several = dice.randint(*BATCH_JOBS) if dice.random() < BATCHES else 1
                these, seeds = seeds[:several], seeds[several:]
                time.sleep(dice.uniform(0, 2 * pause_s) * len(these))
                tries = 2 if dice.random() < AT_ONCE else 1
                for one in [pool.submit(self._insist, these) for _ in range(tries)]:
                    one.result()
                done.append(these)
                self._to.batches += len(these) > 1
                if dice.random() < AGAIN:
                    self._insist(dice.choice(done))

    def _insist(self, seeds: Sequence[int]) -> None:
        known = seeds[0] in self._to.accepted
        unknown_keys = 0
        while True:
            status, headers, body = self._post(seeds)
            if status == (202 if len(seeds) == 1 else 200):
                replayed = headers.get("idempotent-replayed") == "true"
                for seed, answer in zip(seeds, jobs_in(body), strict=True):
                    if answer is None:
                        self._to.wrong.append(f"a job of a batch was refused: {body[:300]!r}")
                    else:
                        self._to.take(seed, answer, replayed, known=known)
                return
            said = str(status) if status else "no answer"
            unknown_keys = unknown_keys + 1 if status == 401 else 0
            passing = not status or status >= 500 or status in (401, 409, 429)
            if not passing or unknown_keys > UNKNOWN_KEYS:
                self._to.wrong.append(f"{said}: {body[:300].decode(errors='replace')}")
                return
            with self._to.lock:
                self._to.tried_again[said] += 1
            time.sleep(float(headers.get("retry-after", PAUSE_S)))

    def _post(self, seeds: Sequence[int]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; status 0 where no whole answer came."""
        name = client_name(self._number)
        headers = {
            "Authorization": f"Bearer {self._tokens[self._number]}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{name}-{seeds[0]}-{seeds[-1]}",
        }
        bodies = [self._work.job(seed) for seed in seeds]
        if len(seeds) == 1:
            return ask(self._work.port, "POST", "/v1/jobs", headers, bodies[0])
        return ask(self._work.port, "POST", "/v1/jobs:batch", headers, {"jobs": bodies})


def jobs_in(body: bytes) -> list[dict[str, Any] | None]:
    """The jobs of an answer, with whether each was created; None for a refused one."""
    answer = json.loads(body)
    return [one["job"] for one in answer["jobs"]] if "jobs" in answer else [answer]


def ask(
    port: int, method: str, path: str, headers: dict[str, str], body: object = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; status 0 where no whole answer came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, json.dumps(body).encode() if body else None, headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, {}, b""
    finally:
        connection.close()


def start_clients(
    tokens: Tokens, jobs: int, work: Work, pause_s: float, seed: int, to: Promises
) -> list[threading.Thread]:
    """A thread a token; together they post `jobs` jobs, the seeds from 0."""
    threads = [
        threading.Thread(
            target=Client(number, tokens, work, to).run,
            args=(range(number, jobs, len(tokens)), pause_s, random.Random(f"{seed}-{number}")),
            daemon=True,
        )
        for number in range(len(tokens))
    ]
    for thread in threads:
        thread.start()
    return threads
