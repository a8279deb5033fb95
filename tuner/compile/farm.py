"""Run warm compile processes, with a time limit per compile and results cached by content."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path

from tuner.childprocess import ChildDied, ChildProcess
from tuner.compile.results import ResultCache, compile_code, default_cache_dir
from tuner.devices.target import Target
from tuner.engines.engine import TritonRelease, installed_triton
from tuner.errors import CompilerUnavailable
from tuner.kernels.binding import Variant
from tuner.kernels.lift import Lifted
from tuner.problems.points import PTXAS_SETTINGS, version_folder
from tuner.problems.results import Compiled, Status, twice


@lru_cache(maxsize=16)
def triton_build(triton: TritonRelease) -> str:
    """Identify a build of a Triton: its version, and a hash of its files' hashes.

    Its distribution lists the hashes. They cover its compiler, its ptxas and its Python.
    """
    places = sys.path if triton.folder is None else [str(triton.folder)]
    found = next(iter(distributions(name="triton", path=places)), None)
    if found is None:  # it was installed under another name, or without one
        return triton.version
    listed = sorted(
        f"{path} {path.hash.value}"
        for path in found.files or ()
        if path.parts[0] == "triton" and path.suffix != ".pyc" and path.hash is not None
    )
    return f"{triton.version} {hashlib.sha256(chr(10).join(listed).encode()).hexdigest()}"


@lru_cache(maxsize=16)
def file_hash(path: str | None) -> str:
    """Return the sha256 of a file; "" without a path."""
    if not path:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return f"unreadable: {path}"


def worker_env(folder: Path, triton: TritonRelease) -> dict[str, str]:
    """Return the environment of a compile process. Triton's cache lies in `folder`."""
    # A process gets only PTXAS_SETTINGS of Triton's settings. Others (TRITON_INTERPRET,
    # TRITON_DEBUG ...) change the compiled code, and the result cache would not know. Processes run
    # an engine's code, which must not see the key of a server.
    dropped = ("TRITON_", "MLIR_", "LLVM_", "TUNER_API_KEY")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in PTXAS_SETTINGS or not name.startswith(dropped)
    }
    if triton.folder is not None:
        paths = [str(triton.folder), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Compiling neither reads nor fills the user's Triton cache. Only machine code is kept, so
    # that a launch with the same folder need not compile again.
    return env | {
        "TRITON_CACHE_DIR": str(folder / version_folder(triton.version)),
        "TRITON_STORE_BINARY_ONLY": "1",
        "PYTHONSAFEPATH": "1",  # a folder named triton in the current folder is not triton
    }


_NOW, _SOON, _LATER = 0, 1, 2  # ranks of jobs
_KEPT = (Status.OK, Status.COMPILE_ERROR, Status.OUT_OF_RESOURCES)  # they would end so again
_CLAIM_AGAIN_S = 0.02  # to wait before a kernel is asked for again that another process compiles
START_LIMIT_S = 120.0  # for a worker to import triton, on a machine busy with other workers


@dataclass(frozen=True, eq=False)
class CompileJob:
    """A kernel to compile for a target."""

    lifted: Lifted
    variant: Variant
    target: Target


class Farm:
    """Compile processes; use it in a `with`, or call `close`.

    `timeout_s` limits the wall time of a compile; a process that exceeds it is killed and replaced.
    A kernel whose process was lost is compiled once more, in a new process. A kernel that another
    `tuner` compiles is left to it for the same time: that process may have been stopped.

    `processes` defaults to the cores that this process may use, less `spare_cores`; of several
    farms that work side by side, each has twice its share of the cores at most, since they seldom
    compile all at once. `triton` is the release to compile with (default: the installed release).
    Raises CompilerUnavailable if triton is not installed.
    """

    def __init__(
        self,
        processes: int | None = None,
        timeout_s: float = 60.0,
        cache_dir: Path | None = None,
        spare_cores: int = 0,
        triton: TritonRelease | None = None,
    ) -> None:
        folder = cache_dir or default_cache_dir()
        with contextlib.suppress(OSError):  # a cache only saves time
            # Others must not exchange kernels. A folder that is there keeps its mode.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.triton = triton or TritonRelease(installed_triton())
        self.compiled = 0  # finished compiles, including failures
        self.cached = 0  # jobs answered without compiling
        self.compile_s = 0.0  # summed over the processes
        cores = len(os.sched_getaffinity(0))
        self.processes = processes or max(1, cores - spare_cores)
        self._timeout_s = timeout_s
        self._held_limit_s = timeout_s  # for another `tuner` that compiles a kernel
        # A launch finds compiled kernels by the same source files and the same Triton cache.
        self.lifted_dir = folder / "lifted"
        self._cache = ResultCache(folder / "compiled")
        self.env = worker_env(folder, self.triton)
        # (rank, number, key and job): lower ranks first, and None ends a thread.
        self._jobs: queue.PriorityQueue[tuple[int, int, tuple[str, CompileJob] | None]]
        self._jobs = queue.PriorityQueue()
        self._number = itertools.count()
        self._open: set[str] = set()  # keys that are queued and not begun
        self._held: dict[str, float] = {}  # keys that another `tuner` compiles, and since when
        self._done: queue.SimpleQueue[tuple[str, Compiled, float] | Exception]
        self._done = queue.SimpleQueue()
        self._failure: Exception | None = None  # why nothing more can be compiled
        self._ready: list[tuple[CompileJob, Compiled]] = []
        self._waiting: dict[str, list[CompileJob]] = {}
        self._threads: list[threading.Thread] = []
        self._workers: set[ChildProcess] = set()
        # Workers without a job. The last worker to finish gets the next job: a process takes a
        # second to start, and longer for its first compile, so few jobs should not wake many of
        # them.
        self._idle: list[ChildProcess] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, jobs: Iterable[CompileJob]) -> None:
        """Queue jobs; never waits for a compile."""
        assert not self._closed, "the farm is closed"
        for job in jobs:
            key = self.key(job)
            known = self._cache.get(key)
            if known is not None:
                self.cached += 1
                self._ready.append((job, known))
            elif self._waiting.get(key):
                self._waiting[key].append(job)
            else:
                self._put(key, job, _SOON, ahead=key in self._waiting)
                self._waiting[key] = [job]
        self._start_threads()

    def compile_ahead(self, jobs: Iterable[CompileJob]) -> None:
        """Compile jobs that will be submitted later, while no submitted job waits.

        `poll` does not return them: their results are kept in the cache.
        """
        assert not self._closed, "the farm is closed"
        for job in jobs:
            key = self.key(job)
            if key not in self._waiting and self._cache.get(key) is None:
                self._waiting[key] = []
                self._put(key, job, _LATER)
        self._start_threads()

    def _put(self, key: str, job: CompileJob, rank: int, *, ahead: bool = False) -> None:
        """Queue a job.

        `ahead`: it was queued to come last; do nothing if a thread has begun it.
        """
        with self._lock:
            if ahead and key not in self._open:
                return
            self._open.add(key)
            self._jobs.put((rank, next(self._number), (key, job)))

    def poll(self, wait: bool) -> list[tuple[CompileJob, Compiled]]:
        """Return the results since the last call; with `wait`, at least one result if any is
        pending.

        Raises CompilerUnavailable, in this and every later call, once nothing can be compiled: the
        compile processes do not start or are broken, or the cache folder cannot be written.
        """
        if self._failure is not None:
            raise self._failure
        while wait and not self._ready and any(self._waiting.values()):
            self._collect(self._done.get())
        with contextlib.suppress(queue.Empty):
            while True:
                self._collect(self._done.get_nowait())
        ready, self._ready = self._ready, []
        return ready

    def completed(self) -> Iterator[tuple[CompileJob, Compiled]]:
        """Yield results as they come, until no job is pending. Raises as `poll` does."""
        while batch := self.poll(wait=True):
            yield from batch

    @property
    def waits(self) -> bool:
        """Say whether another `tuner` compiles all remaining jobs. Any thread may ask."""
        return 0 < len(self._waiting) <= len(self._held)

    @property
    def failed(self) -> bool:
        """Say whether nothing more can be compiled."""
        return self._failure is not None

    def close(self) -> None:
        """Kill the processes and drop pending jobs. May be called twice."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.end()
        for _ in self._threads:
            self._jobs.put((_NOW, next(self._number), None))
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for worker in tuple(self._workers):
            self._stop_worker(worker)
        self._waiting.clear()

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def key(self, job: CompileJob) -> str:
        """Return the hash of everything that decides a result."""
        triton = triton_build(self.triton), [file_hash(self.env.get(n)) for n in PTXAS_SETTINGS]
        parts = [job.lifted.hash, job.variant.as_json(), job.target.arch, *triton, compile_code()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _collect(self, answer: tuple[str, Compiled, float] | Exception) -> None:
        if isinstance(answer, Exception):
            self._failure = answer
            raise answer
        key, compiled, seconds = answer
        self.compiled += not compiled.cached
        self.compile_s += seconds
        jobs = self._waiting.pop(key)
        again = [compiled.cached or at > 0 for at, _ in enumerate(jobs)]
        self.cached += sum(again)
        answers = zip(jobs, again, strict=True)
        self._ready.extend((job, replace(compiled, cached=cached)) for job, cached in answers)

    def _start_threads(self) -> None:
        wanted = min(self.processes, len(self._waiting))
        while len(self._threads) < wanted:
            # Daemon threads, so that an interpreter that ends without close() does not hang; the
            # workers end when their pipes close.
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        """Feed jobs to processes, one at a time, and end processes that fail."""
        try:
            while (item := self._next()) is not None and not self._closed:
                key, job = item
                with self._cache.claim(key) as mine:
                    begun = mine or self._given_up(key)
                    if begun:
                        self._held.pop(key, None)
                        self._done.put((key, *self._answer(key, job)))
                if not begun:
                    time.sleep(_CLAIM_AGAIN_S)
                    self._put(key, job, _SOON)
        except Exception as error:  # any error: otherwise `poll` would wait for ever
            self._done.put(error)

    def _given_up(self, key: str) -> bool:
        """Say whether to wait no longer for another `tuner` that has a key.

        It has had the key for longer than a compile may take, or a third process has compiled it.
        """
        now = time.monotonic()
        held_s = now - self._held.setdefault(key, now)
        return held_s > self._held_limit_s or self._cache.get(key) is not None

    def _answer(self, key: str, job: CompileJob) -> tuple[Compiled, float]:
        """Return the result, and the seconds that it took here."""
        known = self._cache.get(key)  # another process may have compiled it since it was queued
        if known is not None:
            return known, 0.0
        compiled, seconds = self._compile(self._idle_worker() or self._start_worker(), job)
        if compiled.lost and not self._closed:
            compiled, more_s = self._compile(self._start_worker(), job)
            seconds += more_s
            if compiled.lost:
                compiled = replace(compiled, detail=twice(compiled.status, compiled.detail))
        if compiled.status in _KEPT and not compiled.borrowed:
            self._cache.put(key, compiled)
        return compiled, seconds

    def _next(self) -> tuple[str, CompileJob] | None:
        """Return the next job that no thread has begun; None at the end."""
        while True:
            _, _, item = self._jobs.get()
            if item is None:
                return None
            with self._lock:
                if item[0] in self._open:
                    self._open.remove(item[0])
                    return item

    def _idle_worker(self) -> ChildProcess | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _start_worker(self) -> ChildProcess:
        try:
            try:
                worker, found = self._started()
            except ChildDied:
                worker, found = self._started()
        except (ChildDied, OSError) as error:  # TimeoutError is an OSError
            why = f"{error}{self.triton.for_another_python()}"
            raise CompilerUnavailable(f"a compile process did not start: {why}") from None
        if found != self.triton.version:
            self._stop_worker(worker)
            wanted = self.triton.version
            raise CompilerUnavailable(f"a compile process has Triton {found} instead of {wanted}")
        return worker

    def _started(self) -> tuple[ChildProcess, str]:
        """Start a process; return it and the version of its Triton."""
        worker = ChildProcess("tuner.compile.worker", self.env)
        with self._lock:
            self._workers.add(worker)
            if self._closed:  # close() did not see this worker
                worker.end()
        try:
            return worker, worker.wait_until_ready(START_LIMIT_S)["triton"]
        except (ChildDied, TimeoutError):
            self._stop_worker(worker)
            raise

    def _stop_worker(self, worker: ChildProcess) -> None:
        worker.reap()
        with self._lock:
            self._workers.discard(worker)

    def _compile(self, worker: ChildProcess, job: CompileJob) -> tuple[Compiled, float]:
        """Return the result, and the seconds that it took. The process is then idle, or gone."""
        source = self._source(job)
        target = asdict(job.target)
        request = {"source": str(source), "variant": job.variant.as_json(), "target": target}
        start = time.monotonic()
        try:
            answer = worker.ask(request, self._timeout_s)
        except TimeoutError:
            self._stop_worker(worker)
            detail = f"more than {self._timeout_s:g} s"
            return Compiled(Status.COMPILE_TIMEOUT, detail=detail), time.monotonic() - start
        except ChildDied as death:
            self._stop_worker(worker)
            return Compiled(Status.CRASHED, detail=str(death)), time.monotonic() - start
        self._idle.append(worker)
        if "unusable" in answer:
            raise self._unusable(answer["unusable"])
        if "broken" in answer:
            raise self._broken(answer["broken"])
        seconds = answer.pop("seconds")
        return Compiled(**{**answer, "status": Status(answer["status"])}), seconds

    def _source(self, job: CompileJob) -> Path:
        try:
            return job.lifted.write(self.lifted_dir)
        except OSError as error:
            raise self._unusable(str(error)) from None

    def _unusable(self, why: str) -> CompilerUnavailable:
        folder = self.lifted_dir.parent
        return CompilerUnavailable(
            f"nothing can be compiled in the cache folder {folder}: {why}; make it writable, "
            "or set TUNER_CACHE_DIR to another folder"
        )

    def _broken(self, why: str) -> CompilerUnavailable:
        return CompilerUnavailable(
            f"a compile process with Triton {self.triton.version} failed before or after Triton's "
            f"compiler: {why}; no configuration is at fault, so nothing was kept of it: report it, "
            "or use another release of the engine"
        )
