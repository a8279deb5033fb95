"""Manage a GPU's child process, a warm spare process, and the waiting candidates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.childprocess import ChildDied, ChildProcess
from tuner.errors import BadInput, GpuInUse, MeasurerFailed, MeasurerUnavailable, NotEnoughMemory
from tuner.measure.messages import point_fields, read_measurement
from tuner.problems.points import TRITON, Candidate, Point, title_of
from tuner.problems.results import Compiled, Measurement, Status, twice

CHILD_MODULE = "tuner.measure.gpu_child"
IMPORT_LIMIT_S = 180.0  # importing torch from a cold disk
SETUP_LIMIT_S = 180.0
# Requests sent before earlier answers arrive, so that the GPU never waits for the parent.
SENT_AHEAD = 16


@dataclass(frozen=True)
class ChildLimits:
    """The limits after which a child process is given up."""

    request_s: float = 20.0  # for one candidate
    library_s: float = 400.0  # for another backend's kernel, which it may have to compile first
    inputs_s: float = 120.0  # more, if the inputs and the reference of its point have to be made
    race_s: float = 180.0  # for a race, with the inputs of its point
    backend_points: int = 2  # at which a backend may be lost; it is tried at no others then
    in_a_row: int = 100  # children lost without a result between them, before the run fails

    def of(self, candidate: Candidate) -> float:
        """Return the limit of a request for a candidate whose inputs exist."""
        return self.request_s if candidate.backend == TRITON else self.library_s


@dataclass(frozen=True)
class PendingMeasurement:
    """A compiled candidate that waits for its measurement."""

    candidate: Candidate
    compiled: Compiled


class GpuWorker:
    """Measures candidates in order.

    A CUDA error or a limit ends the child. The child's candidate is then tried once more, in a new
    child, before it counts as lost. A backend that was lost at `backend_points` points is not tried
    at further points: each could cost two children more.
    """

    def __init__(
        self,
        setup: Mapping[str, Any] | None,
        env: dict[str, str],
        limits: ChildLimits,
        module: str = CHILD_MODULE,
    ) -> None:
        """Start the child. `module` is the program to run; it follows the protocol of
        `CHILD_MODULE`.

        Without a setup, the child only starts, and `set_up` must follow. Raises
        MeasurerUnavailable, NotEnoughMemory, BadInput or GpuInUse if it cannot be set up.
        """
        self.env, self.limits, self._module = env, limits, module
        self._queue: deque[PendingMeasurement] = deque()
        self._sent: deque[PendingMeasurement] = deque()
        self._head_since = 0.0
        self._again: PendingMeasurement | None = None  # the candidate that has lost one child
        self._untried: list[tuple[PendingMeasurement, Measurement]] = []  # not collected yet
        self._begin(setup or {})
        self.opened_at: float | None = None  # when a child first touched the GPU
        self._started = False  # whether the child has said so
        self._child = ChildProcess(module, env)
        self._spare = ChildProcess(module, env)
        if setup is not None:
            self.set_up(setup)

    def set_up(self, setup: Mapping[str, Any]) -> None:
        """Prepare the child for a problem, the first or another; counts begin again.

        The worker must be idle. Raises as the constructor does; the worker is then closed.
        """
        assert self.idle
        self._begin(setup)
        try:
            self.ready = self._opened()
        except BaseException:
            self.close()
            raise

    def _begin(self, setup: Mapping[str, Any]) -> None:
        self._setup = dict(setup)
        self._made: Point | None = None  # the newest point whose inputs the child has
        self._lost: dict[str, list[str]] = {}  # how each backend was lost, at a point each
        self._in_a_row = 0  # children lost since the last result
        self.replaced = 0  # children lost with this problem
        self.busy_s = 0.0  # of the GPU with this problem

    @property
    def idle(self) -> bool:
        return not self._queue and not self._sent and not self._untried

    def put(self, pending: PendingMeasurement) -> None:
        self._queue.append(pending)
        self._feed()

    def collect(self, timeout_s: float) -> list[tuple[PendingMeasurement, Measurement]]:
        """Return the finished measurements; wait up to `timeout_s` for the first result.

        Raises MeasurerFailed if too many children were lost.
        """
        done: list[tuple[PendingMeasurement, Measurement]] = []
        while self._sent:
            try:
                answer = self._child.poll(0.0 if done or self._untried else timeout_s)
            except ChildDied as death:
                done += self._lose(Status.CRASHED, str(death))
                break
            if answer is None:
                limit_s = self._limit_s()
                if time.monotonic() - self._head_since > limit_s:
                    done += self._lose(Status.TIMED_OUT, f"no result in {limit_s:g} s")
                break
            done += self._take(answer)
            self._feed()
        untried, self._untried = self._untried, []
        return done + untried

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send one request outside the queue.

        An answer with "error" says in words why the request failed: the child was lost, had too
        little memory, or failed. The worker must be idle. Raises BadInput, or TimeoutError.
        """
        assert self.idle
        try:
            answer = self._child.ask(request, timeout_s)
        except ChildDied as death:
            answer = {"status": Status.CRASHED.value, "detail": str(death)}
        except TimeoutError as late:
            self._replace(str(late))
            raise
        if answer.get("status") == "bad_input":
            raise BadInput(answer["detail"])
        if "status" in answer:  # the child has ended, or must
            self._replace(answer["detail"])
            return {"error": answer["detail"]}
        self._made, self._in_a_row = None, 0
        return answer

    def close(self) -> None:
        for child in (self._child, self._spare):
            child.reap()

    def _feed(self) -> None:
        while self._queue and len(self._sent) < SENT_AHEAD:
            pending = self._queue.popleft()
            point, backend = pending.candidate.point, pending.candidate.backend
            if len(lost := self._lost.get(backend, [])) >= self.limits.backend_points:
                why = f"not tried: {title_of(backend)} at {len(lost)} other points {lost[-1]}"
                self._untried.append((pending, Measurement(Status.CRASHED, detail=why)))
                continue
            if not self._sent:
                self._head_since = time.monotonic()
            self._sent.append(pending)
            request = {
                "op": "measure",
                **point_fields(point),
                "config": dict(pending.candidate.config),
                "backend": backend,
            }
            try:
                self._child.send(request)
            except ChildDied:
                return  # the next collect() handles the death and requeues the candidates

    def _limit_s(self) -> float:
        """Return how long the first candidate that was sent may take."""
        candidate = self._sent[0].candidate
        more_s = 0.0 if candidate.point == self._made else self.limits.inputs_s
        return self.limits.of(candidate) + more_s

    def _take(self, answer: dict[str, Any]) -> list[tuple[PendingMeasurement, Measurement]]:
        _refuse_failed(answer)
        if "error" not in answer and answer["status"] == Status.CRASHED.value:
            return self._lose(Status.CRASHED, answer["detail"])
        pending = self._sent.popleft()
        self._head_since = time.monotonic()
        self._made, self._in_a_row = pending.candidate.point, 0
        self.busy_s += answer.pop("seconds")
        if "error" in answer:  # the child goes on
            return [(pending, Measurement(Status.CRASHED, detail=answer["error"]))]
        return [(pending, read_measurement(answer))]

    def _lose(self, status: Status, words: str) -> list[tuple[PendingMeasurement, Measurement]]:
        """Try the candidate that lost the child once more, or fail it, and go on with the next
        candidates.
        """
        pending, *behind = self._sent
        self._sent.clear()
        self._queue.extendleft(reversed(behind))
        detail = twice(status, words)
        lost = [(pending, Measurement(status, detail=detail))]
        backend = pending.candidate.backend
        if pending is not self._again:
            self._again, lost = pending, []
            self._queue.appendleft(pending)
        elif backend != TRITON:
            self._lost.setdefault(backend, []).append(detail)
        self._replace(words)
        self._feed()
        return lost

    def _replace(self, words: str) -> None:
        """Go on with the spare child. `words`: how the present child was lost."""
        self.replaced += 1
        self._in_a_row += 1
        if self._in_a_row > self.limits.in_a_row:
            raise MeasurerFailed(
                f"{self._in_a_row} measuring processes were lost in a row: {words}; "
                "look at the GPU (nvidia-smi, dmesg) before going on"
            )
        self._next_child()
        self._opened()

    def _next_child(self) -> None:
        self._child.reap()
        self._child, self._spare = self._spare, ChildProcess(self._module, self.env)
        self._started, self._made = False, None

    def _opened(self) -> dict[str, Any]:
        """Return the child's answer to its setup. If the child fails earlier, try the
        spare child.
        """
        try:
            return self._set_up()
        except MeasurerUnavailable:
            self._next_child()
            return self._set_up()

    def _set_up(self) -> dict[str, Any]:
        try:
            if not self._started:
                self._child.wait_until_ready(IMPORT_LIMIT_S)
                self._started = True
            self.opened_at = self.opened_at or time.perf_counter()
            ready = self._child.ask({"op": "setup", **self._setup}, SETUP_LIMIT_S)
        except (ChildDied, TimeoutError) as error:
            raise _unavailable(f"the measuring process did not start: {error}") from None
        _refuse_failed(ready)
        if "status" in ready:
            raise _unavailable(f"the GPU cannot be used: {ready['detail']}")
        if ready["needed_bytes"] > ready["free_bytes"]:
            raise NotEnoughMemory(
                f"the problem's tensors need {ready['needed_bytes']:,} bytes of GPU memory, "
                f"{ready['free_bytes']:,} are free: leave out the largest batch sizes"
            )
        return ready


def _unavailable(why: str) -> MeasurerUnavailable:
    """Add the next step to `why`: most users who see it have no torch or no GPU here."""
    needs = "measuring needs torch and the GPU: run it with the Python that serves the engine, on"
    return MeasurerUnavailable(
        f"{why}; {needs} a machine with the GPU",
        cli=", or add --measure predict",
        api=", or post measure=predict",
    )


def _refuse_failed(answer: Mapping[str, Any]) -> None:
    """Raise NotEnoughMemory, BadInput or GpuInUse: failures that would repeat in another child."""
    if answer.get("status") == "out_of_memory":
        raise NotEnoughMemory(answer["detail"])
    if answer.get("status") == "bad_input":
        raise BadInput(answer["detail"])
    if answer.get("status") == "in_use":
        wait = ": wait until it has ended, or name another GPU with --gpu"
        raise GpuInUse(answer["detail"], cli=wait)
