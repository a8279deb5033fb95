"""One GPU's lane: the child that owns the GPU, a warm one behind it, and what waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.childprocess import ChildDied, ChildProcess
from tuner.errors import BadInput, MeasurerFailed, MeasurerUnavailable, NotEnoughMemory
from tuner.measure.messages import point_fields, read_measurement
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Measurement, Status

CHILD_MODULE = "tuner.measure.gpu_child"
IMPORT_LIMIT_S = 180.0  # importing torch from a cold disk
SETUP_LIMIT_S = 180.0
# Requests written ahead, so that the GPU goes on while the parent thinks and stores.
AHEAD = 16


@dataclass(frozen=True)
class Limits:
    """When a child is given up."""

    request_s: float = 20.0  # for one candidate, its point's inputs and reference included
    replacements: int = 200  # children lost in one run before the machine is to blame


@dataclass(frozen=True)
class Ticket:
    """A candidate on its way through a lane."""

    candidate: Candidate
    compiled: Compiled


class Lane:
    """Measures candidates in order. Any CUDA error costs the child, and one candidate its trial."""

    def __init__(
        self,
        setup: Mapping[str, Any],
        env: dict[str, str],
        limits: Limits,
        module: str = CHILD_MODULE,
    ) -> None:
        """`module` is the program to measure with; it speaks as `CHILD_MODULE` does."""
        self._setup, self._env, self._limits, self._module = dict(setup), env, limits, module
        self._queue: deque[Ticket] = deque()
        self._sent: deque[Ticket] = deque()
        self._head_since = 0.0
        self._best_us: dict[Any, float] = {}
        self.replaced = 0
        self.busy_s = 0.0
        self._child = ChildProcess(module, env)
        self._spare = ChildProcess(module, env)
        try:
            self.ready = self._set_up()
        except BaseException:
            self.close()
            raise

    @property
    def idle(self) -> bool:
        return not self._queue and not self._sent

    def put(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        self._feed()

    def collect(self, timeout_s: float) -> list[tuple[Ticket, Measurement]]:
        """What has been measured; waits up to `timeout_s` for the first."""
        done: list[tuple[Ticket, Measurement]] = []
        while self._sent:
            try:
                answer = self._child.poll(0.0 if done else timeout_s)
            except ChildDied as death:
                done.append(self._lose(Measurement(Status.CRASHED, detail=str(death))))
                break
            if answer is None:
                if time.monotonic() - self._head_since > self._limits.request_s:
                    detail = f"no result in {self._limits.request_s:g} s"
                    done.append(self._lose(Measurement(Status.TIMED_OUT, detail=detail)))
                break
            done.append(self._take(answer))
            self._feed()
        return done

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """One request beside the queue; None where it cost the child. The lane must be idle."""
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
        while self._queue and len(self._sent) < AHEAD:
            ticket = self._queue.popleft()
            point = ticket.candidate.point
            if not self._sent:
                self._head_since = time.monotonic()
            self._sent.append(ticket)
            request = {
                "op": "measure",
                **point_fields(point),
                "config": dict(ticket.candidate.config),
                "best_us": self._best_us.get(point),
            }
            try:
                self._child.send(request)
            except ChildDied:
                return  # the next collect() sees it, and knows what to do with the tickets

    def _take(self, answer: dict[str, Any]) -> tuple[Ticket, Measurement]:
        _refuse_failed(answer)
        if answer["status"] == Status.CRASHED.value:
            return self._lose(Measurement(Status.CRASHED, detail=answer["detail"]))
        ticket = self._sent.popleft()
        self._head_since = time.monotonic()
        self.busy_s += answer.pop("seconds")
        measurement = read_measurement(answer)
        if measurement.median_us is not None:
            point = ticket.candidate.point
            best = self._best_us.get(point, measurement.median_us)
            self._best_us[point] = min(best, measurement.median_us)
        return ticket, measurement

    def _lose(self, measurement: Measurement) -> tuple[Ticket, Measurement]:
        """The head of the line cost the child; those behind it go back to the queue."""
        ticket = self._sent.popleft()
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._replace()
        self._feed()
        return ticket, measurement

    def _replace(self) -> None:
        self._child.reap()
        self.replaced += 1
        if self.replaced > self._limits.replacements:
            raise MeasurerFailed(
                f"{self.replaced} measuring processes were lost in a row of one run: "
                f"look at the GPU (nvidia-smi, dmesg) before going on"
            )
        self._child, self._spare = self._spare, ChildProcess(self._module, self._env)
        self._set_up()

    def _set_up(self) -> dict[str, Any]:
        try:
            self._child.wait_until_ready(IMPORT_LIMIT_S)
            ready = self._child.ask({"op": "setup", **self._setup}, SETUP_LIMIT_S)
        except (ChildDied, TimeoutError) as error:
            raise MeasurerUnavailable(f"the measuring process did not start: {error}") from None
        _refuse_failed(ready)
        if "status" in ready:
            raise MeasurerUnavailable(f"the GPU cannot be used: {ready['detail']}")
        if ready["needed_bytes"] > ready["free_bytes"]:
            raise NotEnoughMemory(
                f"the problem's tensors need {ready['needed_bytes']:,} bytes of GPU memory, "
                f"{ready['free_bytes']:,} are free: leave out the largest batch sizes"
            )
        return ready


def _refuse_failed(answer: Mapping[str, Any]) -> None:
    """Raises what another child would meet as well: NotEnoughMemory or BadInput."""
    if answer.get("status") == "out_of_memory":
        raise NotEnoughMemory(answer["detail"])
    if answer.get("status") == "bad_input":
        raise BadInput(answer["detail"])
