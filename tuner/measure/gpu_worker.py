"""One GPU: the child process that owns it, a warm spare process, and the waiting candidates."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.childprocess import ChildDied, ChildProcess
from tuner.errors import BadInput, GpuInUse, MeasurerFailed, MeasurerUnavailable, NotEnoughMemory
from tuner.measure.messages import point_fields, read_measurement
from tuner.problems.points import TRITON, Candidate
from tuner.problems.results import Compiled, Measurement, Status

CHILD_MODULE = "tuner.measure.gpu_child"
IMPORT_LIMIT_S = 180.0  # importing torch from a cold disk
SETUP_LIMIT_S = 180.0
# Requests sent before earlier answers arrive, so that the GPU never waits for the parent.
SENT_AHEAD = 16


@dataclass(frozen=True)
class ChildLimits:
    """When to give up on a child process."""

    request_s: float = 20.0  # for one candidate, including its point's inputs and reference
    library_s: float = 400.0  # for another backend's kernel, which it may have to compile first
    replacements: int = 200  # children lost in one run before the run fails

    def of(self, candidate: Candidate) -> float:
        """The limit of a request for a candidate."""
        return self.request_s if candidate.backend == TRITON else self.library_s


@dataclass(frozen=True)
class PendingMeasurement:
    """A compiled candidate that waits for its measurement."""

    candidate: Candidate
    compiled: Compiled


class GpuWorker:
    """Measures candidates in order. A CUDA error ends the child and fails one candidate."""

    def __init__(
        self,
        setup: Mapping[str, Any] | None,
        env: dict[str, str],
        limits: ChildLimits,
        module: str = CHILD_MODULE,
    ) -> None:
        """`module` is the program to run; it follows the protocol of `CHILD_MODULE`.

        Without a setup, the child only starts, and `set_up` must follow. Raises
        MeasurerUnavailable, NotEnoughMemory, BadInput or GpuInUse where it cannot be set up.
        """
        self.env, self._module = env, module
        self._queue: deque[PendingMeasurement] = deque()
        self._sent: deque[PendingMeasurement] = deque()
        self._head_since = 0.0
        self._begin(setup or {}, limits)
        self.opened_at: float | None = None  # when a child first touched the GPU
        self._child = ChildProcess(module, env)
        self._spare = ChildProcess(module, env)
        if setup is not None:
            self.set_up(setup, limits)

    def set_up(self, setup: Mapping[str, Any], limits: ChildLimits) -> None:
        """Prepare the child for a problem, the first one or another one; counts begin again.

        The worker must be idle. Raises as the constructor does; the worker is then closed.
        """
        assert self.idle
        self._begin(setup, limits)
        try:
            if self.opened_at is None:
                self._child_starts()
                self.opened_at = time.perf_counter()
            self.ready = self._set_up()
        except BaseException:
            self.close()
            raise

    def _begin(self, setup: Mapping[str, Any], limits: ChildLimits) -> None:
        self._setup, self._limits = dict(setup), limits
        self.replaced = 0  # children lost with this problem
        self.busy_s = 0.0  # of the GPU with this problem

    @property
    def idle(self) -> bool:
        return not self._queue and not self._sent

    def put(self, pending: PendingMeasurement) -> None:
        self._queue.append(pending)
        self._feed()

    def collect(self, timeout_s: float) -> list[tuple[PendingMeasurement, Measurement]]:
        """Return what has been measured; wait up to `timeout_s` for the first result.

        Raises MeasurerFailed where too many children were lost.
        """
        done: list[tuple[PendingMeasurement, Measurement]] = []
        while self._sent:
            try:
                answer = self._child.poll(0.0 if done else timeout_s)
            except ChildDied as death:
                done.append(self._lose(Measurement(Status.CRASHED, detail=str(death))))
                break
            if answer is None:
                limit_s = self._limits.of(self._sent[0].candidate)
                if time.monotonic() - self._head_since > limit_s:
                    detail = f"no result in {limit_s:g} s"
                    done.append(self._lose(Measurement(Status.TIMED_OUT, detail=detail)))
                break
            done.append(self._take(answer))
            self._feed()
        return done

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Send one request outside the queue; None where it crashed the child.

        The worker must be idle.
        """
        assert self.idle
        try:
            answer = self._child.ask(request, timeout_s)
        except (ChildDied, TimeoutError):
            self._replace()
            return None
        _refuse_failed(answer)
        if answer.get("status") == Status.CRASHED.value:
            self._replace()
            return None
        return answer

    def close(self) -> None:
        for child in (self._child, self._spare):
            child.reap()

    def _feed(self) -> None:
        while self._queue and len(self._sent) < SENT_AHEAD:
            pending = self._queue.popleft()
            point = pending.candidate.point
            if not self._sent:
                self._head_since = time.monotonic()
            self._sent.append(pending)
            request = {
                "op": "measure",
                **point_fields(point),
                "config": dict(pending.candidate.config),
                "backend": pending.candidate.backend,
            }
            try:
                self._child.send(request)
            except ChildDied:
                return  # the next collect() handles the death and requeues the candidates

    def _take(self, answer: dict[str, Any]) -> tuple[PendingMeasurement, Measurement]:
        _refuse_failed(answer)
        if answer["status"] == Status.CRASHED.value:
            return self._lose(Measurement(Status.CRASHED, detail=answer["detail"]))
        pending = self._sent.popleft()
        self._head_since = time.monotonic()
        self.busy_s += answer.pop("seconds")
        return pending, read_measurement(answer)

    def _lose(self, measurement: Measurement) -> tuple[PendingMeasurement, Measurement]:
        """Fail the candidate that crashed the child, and requeue the candidates behind it."""
        pending = self._sent.popleft()
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._replace()
        self._feed()
        return pending, measurement

    def _replace(self) -> None:
        self._child.reap()
        self.replaced += 1
        if self.replaced > self._limits.replacements:
            raise MeasurerFailed(
                f"{self.replaced} measuring processes were lost in one run: "
                "look at the GPU (nvidia-smi, dmesg) before going on"
            )
        self._child, self._spare = self._spare, ChildProcess(self._module, self.env)
        self._child_starts()
        self._set_up()

    def _child_starts(self) -> None:
        try:
            self._child.wait_until_ready(IMPORT_LIMIT_S)
        except (ChildDied, TimeoutError) as error:
            raise _unavailable(f"the measuring process did not start: {error}") from None

    def _set_up(self) -> dict[str, Any]:
        try:
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
    """`why`, with what to do: most who see it have no torch or no GPU here."""
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
        wait = ": wait until it has ended, or name another GPU with --gpus"
        raise GpuInUse(answer["detail"], cli=wait)
