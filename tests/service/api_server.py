"""A real API on 127.0.0.1, and a client so plain that it can misbehave."""

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvicorn
from cases import config
from sqlalchemy import text
from store_writer import KEY, POINTS, batch

from api.app import create_app
from api.requests import EXAMPLE_CLUSTER
from api.serve import uvicorn_options
from api.settings import ApiSettings
from tuner.families.fused_moe.problem import BATCH_SIZES
from tuner.jobs.job import Job, JobFilter
from tuner.problems.results import Compiled, Entry, Incumbent, Status, Totals
from tuner.store.connect import connect
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from workers.queue import Announces

_CONFIG = config(16, 64, 128)
ENTRY = Entry(
    POINTS[0],
    _CONFIG,
    Status.OK,
    10.0,
    Compiled(Status.OK, shared_bytes=73_728, n_regs=128, n_spills=0),
    {"default": Incumbent(_CONFIG.replace(num_stages=2), Status.OK, 12.5, 49_152)},
    "faster than default",
)
# Its servers have the problem of ENTRY.
CLUSTER = EXAMPLE_CLUSTER
for old, new in (
    ("mixtral-8x7b", "deepseek-r1"),
    ("tp = 8", "tp = 32"),
    ("gpus = 8", "gpus = 32"),
    (
        "\n[model]",
        'flags = ["--quantization", "w8a8_int8", "--disable-shared-experts-fusion"]\n\n[model]',
    ),
):
    CLUSTER = CLUSTER.replace(old, new)
# An entry for each size, as an export asks for it.
WHOLE = [replace(ENTRY, point=replace(POINTS[0], batch_size=size)) for size in BATCH_SIZES]
JOB = {"model": "deepseek-r1", "device": "L40S", "tp": 32, "dtype": "int8_w8a8"}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "intermediate_size": 14336,
    "hidden_size": 4096,
    "num_experts_per_tok": 2,
    "torch_dtype": "bfloat16",
}
LARGEST = 100_000  # bytes of a body, for `untouched`
NEVER = "0" * 26  # an id that no job has


@dataclass
class Answer:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def problem(self, status: int) -> str:
        """The detail of a problem with that status."""
        assert self.status == status, (self.status, self.body[:500])
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == status
        assert self.json["request_id"] == self.headers["x-request-id"]
        return str(self.json["detail"])


@dataclass
class Server:
    """Where the API answers."""

    port: int
    app: Any
    key: str | None = None
    stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Answer:
        """Send a request; a body that is not bytes goes as JSON."""
        sent = dict(headers or {})
        if key := key or self.key:
            sent["Authorization"] = f"Bearer {key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())

    def submit(self, **changes: object) -> Any:
        """The job of an accepted submission."""
        answer = self.call("POST", "/v1/jobs", {**JOB, **changes})
        assert answer.status == 202, answer.body
        return answer.json


@contextlib.contextmanager
def serving(
    settings: ApiSettings, announcer: Announces | None = None, port: int = 0
) -> Iterator[Server]:
    """The API in a thread of this process, by default on a free port."""
    app = create_app(settings, announcer)
    config = uvicorn.Config(
        app,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
        **uvicorn_options(settings),
    )
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def startup_and_say(*arguments: Any, **named: Any) -> None:
        await startup(*arguments, **named)
        started.set()

    server.startup = startup_and_say
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(30)

    try:
        assert started.wait(30), "the API did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Server(port, app, stop=stop)
    finally:
        stop()


def work(leases: Leases, *, finish: bool = True, entries: Sequence[Entry] = (ENTRY,)) -> Job:
    """What a worker does with the next job: some trials, then the end."""
    lease = leases.claim([JobFilter(needs_gpu=True), JobFilter(needs_gpu=False)], "test")
    store = leases.store(lease)
    run = store.begin_run(KEY)
    store.add_trials(run, batch(0))
    if finish:
        store.finish_run(run, entries, Totals(measurements=100))
    return JobStore(leases.database).get(lease.job_id)


def eventually(condition: Callable[[], bool]) -> None:
    """Waits, without a clock of its own, for what another thread is about to do."""
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


def rows_of(database_url: str) -> int:
    """What was written on behalf of clients."""
    tables = ("jobs", "job_events", "idempotency_keys", "watches")
    with connect(database_url).connect() as connection:
        counts = (connection.execute(text(f"SELECT count(*) FROM {t}")).scalar() for t in tables)  # noqa: S608
        return sum(int(count or 0) for count in counts)
