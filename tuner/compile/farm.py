"""The compile farm: warm processes, a time limit a compile, results cached by content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tuner.compile.results import ResultCache, default_cache_dir
from tuner.errors import CompilerUnavailable
from tuner.kernels.binding import Variant
from tuner.kernels.lift import Lifted
from tuner.results import Compiled, Status

START_LIMIT_S = 120.0  # for a worker to import triton, on a machine busy with other workers
# Of Triton's own settings only those that say where ptxas lies reach a worker: the others
# would change what is compiled (TRITON_INTERPRET, TRITON_DEBUG ...) behind the cache's back.
KEPT_SETTINGS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@dataclass(frozen=True, eq=False)
class Job:
    """One kernel to compile for one architecture (89, 90, 120 ...)."""

    lifted: Lifted
    variant: Variant
    arch: int


class Farm:
    """Compile processes; use it in a `with`, or call `close`.

    `timeout_s` is wall time a compile; the process that passes it is killed and replaced.
    Raises CompilerUnavailable where triton is not installed or cannot be imported.
    """

    def __init__(
        self,
        processes: int | None = None,
        timeout_s: float = 60.0,
        cache_dir: Path | None = None,
    ) -> None:
        folder = cache_dir or default_cache_dir()
        self.triton = installed_triton()
        self.compiled = 0  # compiles run to an end, good or bad
        self.cached = 0  # jobs answered without compiling
        self.compile_s = 0.0  # summed over the processes
        self._processes = processes or os.cpu_count() or 1
        self._timeout_s = timeout_s
        self._lifted_dir = folder / "lifted"
        self._cache = ResultCache(folder / "compiled")
        self._env = _worker_env(folder)
        self._jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Compiled, float] | CompilerUnavailable]
        self._done = queue.SimpleQueue()
        self._ready: list[tuple[Job, Compiled]] = []
        self._waiting: dict[str, list[Job]] = {}
        self._threads: list[threading.Thread] = []
        self._workers: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queue jobs; never waits for a compile."""
        assert not self._closed, "the farm is closed"
        for job in jobs:
            key = self.key(job)
            known = self._cache.get(key)
            if known is not None:
                self.cached += 1
                self._ready.append((job, known))
            elif key in self._waiting:
                self._waiting[key].append(job)
            else:
                self._waiting[key] = [job]
                self._jobs.put((key, job))
        self._start_threads()

    def completed(self) -> Iterator[tuple[Job, Compiled]]:
        """Results as they come, until no job is pending."""
        while self._ready or self._waiting:
            while self._ready:
                yield self._ready.pop()
            if self._waiting:
                self._collect()

    def close(self) -> None:
        """Kill the processes and drop what is pending. May be called twice."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._waiting.clear()

    def __enter__(self) -> Farm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def key(self, job: Job) -> str:
        """The content that decides a result, hashed."""
        settings = [self._env.get(name) for name in KEPT_SETTINGS]
        parts = [job.lifted.hash, job.variant.as_json(), job.arch, self.triton, settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _collect(self) -> None:
        answer = self._done.get()
        if isinstance(answer, CompilerUnavailable):
            raise answer
        key, compiled, seconds = answer
        self.compiled += 1
        self.compile_s += seconds
        first, *same = self._waiting.pop(key)
        self.cached += len(same)
        self._ready.append((first, compiled))
        self._ready += [(job, replace(compiled, cached=True)) for job in same]

    def _start_threads(self) -> None:
        wanted = min(self._processes, len(self._waiting))
        while len(self._threads) < wanted:
            # Daemon: an interpreter that ends without close() must not hang on its farm; the
            # workers end by themselves when their pipes close.
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        """One thread a process: hand over a job, wait for its answer, replace the dead."""
        worker: _Worker | None = None
        try:
            while (item := self._jobs.get()) is not None and not self._closed:
                key, job = item
                worker = worker or self._hire()
                compiled, seconds = self._compile(worker, job)
                if not worker.alive:
                    self._dismiss(worker)
                    worker = None
                elif compiled.status in (Status.OK, Status.COMPILE_ERROR, Status.OUT_OF_RESOURCES):
                    self._cache.put(key, compiled)
                self._done.put((key, compiled, seconds))
        except CompilerUnavailable as error:
            self._done.put(error)
        finally:
            if worker is not None:
                self._dismiss(worker)

    def _hire(self) -> _Worker:
        worker = _Worker(self._env)
        with self._lock:
            self._workers.add(worker)
            if self._closed:  # close() did not see this one
                worker.kill()
        worker.wait_until_ready()
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)

    def _compile(self, worker: _Worker, job: Job) -> tuple[Compiled, float]:
        source = job.lifted.write(self._lifted_dir)
        request = {"source": str(source), "variant": job.variant.as_json(), "arch": job.arch}
        start = time.monotonic()
        try:
            answer = worker.ask(request, self._timeout_s)
        except TimeoutError:
            worker.kill()
            detail = f"more than {self._timeout_s:g} s"
            return Compiled(Status.COMPILE_TIMEOUT, detail=detail), time.monotonic() - start
        except _Died as death:
            worker.kill()
            return Compiled(Status.COMPILE_ERROR, detail=str(death)), time.monotonic() - start
        seconds = answer.pop("seconds")
        return Compiled(**{**answer, "status": Status(answer["status"])}), seconds


class _Died(Exception):
    """The worker ended without an answer; says how."""


class _Worker:
    """One compile process in a group of its own, and its pipes."""

    def __init__(self, env: dict[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tuner.compile.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
            bufsize=0,
            start_new_session=True,  # a group to kill with its ptxas, out of Ctrl-C's reach
        )

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def wait_until_ready(self) -> None:
        try:
            self._read(START_LIMIT_S)
        except (_Died, TimeoutError) as error:
            self.kill()
            raise CompilerUnavailable(f"a compile process did not start: {error}") from None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Raises TimeoutError or _Died; the worker is of no use after either."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise _Died(self._last_words()) from None
        return self._read(timeout_s)

    def kill(self) -> None:
        """End the process and its group, and reap it."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise TimeoutError(f"no answer in {timeout_s:g} s")
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise _Died(self._last_words())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"the compile process ended ({end})" + (f": {said[-1][:300]}" if said else "")


def installed_triton() -> str:
    """The version of the triton that a worker would import; imports nothing.

    Raises CompilerUnavailable without one.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise CompilerUnavailable("triton is not installed: pip install 'engine-tuner[compile]'")
    found = re.search(r"__version__ = ['\"]([^'\"]+)", Path(spec.origin).read_text())
    if found is None:
        raise CompilerUnavailable(f"{spec.origin} does not say which triton it is")
    return found[1]


def _worker_env(folder: Path) -> dict[str, str]:
    dropped = ("TRITON_", "MLIR_", "LLVM_")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_SETTINGS or not name.startswith(dropped)
    }
    # The user's own Triton cache is neither read nor filled. Of each kernel only the machine
    # code is kept, so that a launch from the same folder need not compile again.
    return env | {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_STORE_BINARY_ONLY": "1",
        "PYTHONSAFEPATH": "1",  # a folder named triton where the user stands is not triton
    }
