"""Share processes between the runs of one command: compile processes, and each GPU's child.

Starting them takes seconds. A model has several problems, so a command starts them once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.compile import Farm
from tuner.engines.engine import TritonRelease
from tuner.measure.gpu_worker import CHILD_MODULE, ChildLimits, GpuWorker
from tuner.problems.points import Config, Point, Problem


class Workbench:
    """The processes of one command. Use it in a `with`, or call `close`.

    One run at a time may use it.
    """

    def __init__(
        self,
        child: str = CHILD_MODULE,
        *,
        limits: ChildLimits = ChildLimits(),
        compile_s: float = 60.0,
    ) -> None:
        """Take the program of a GPU's child, which follows the protocol of `CHILD_MODULE`.

        `compile_s`: as the farm's `timeout_s`.
        """
        self._child = child
        self._limits, self._compile_s = limits, compile_s
        # The choices of earlier runs of the command: first tries for problems that are like theirs.
        self.chosen: list[tuple[Problem, Mapping[Point, Config]]] = []
        self._farm: Farm | None = None
        self._workers: dict[str, GpuWorker] = {}

    def farm(self, spare_cores: int, triton: TritonRelease) -> Farm:
        """Return the compile processes; the first call says how many cores they leave free."""
        farm = self._farm
        if farm is None or farm.failed or farm.triton != triton:
            self._close_farm()
            self._farm = farm = Farm(
                timeout_s=self._compile_s,
                spare_cores=spare_cores,
                triton=triton,
            )
        return farm

    def start(self, gpu: str, env: dict[str, str]) -> None:
        """Start a GPU's child, which takes seconds, before it is needed."""
        if gpu not in self._workers:
            self._workers[gpu] = GpuWorker(None, env, self._limits, self._child)

    def worker(self, gpu: str, setup: Mapping[str, Any], env: dict[str, str]) -> GpuWorker:
        """Return the worker of a GPU, set up for a problem. Raises as `GpuWorker` does."""
        worker = self._workers.pop(gpu, None)
        # Requests are under way if a run was given up; another engine may need another Triton.
        if worker is not None and not (worker.idle and worker.env == env):
            worker.close()
            worker = None
        worker = worker or GpuWorker(None, env, self._limits, self._child)
        worker.set_up(setup)
        self._workers[gpu] = worker
        return worker

    def close(self) -> None:
        """End all processes. May be called twice."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._close_farm()

    def _close_farm(self) -> None:
        if self._farm is not None:
            self._farm.close()
            self._farm = None

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
