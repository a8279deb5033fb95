"""A worker's row in the store: that it lives, what it can do, and whether it may take jobs."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from tuner.engines.engine import engine_names, find_engine
from tuner.engines.locate import find_packages
from tuner.engines.versions import version_order
from tuner.jobs.workers import WorkerInfo, WorkerState
from tuner.store.workers import WorkerStore
from workers.gpus import LocalGpu

log = logging.getLogger("tuner.worker")

FAILED_STARTS = 2  # in a row, after which the worker is set aside
LOOK_EVERY_S = 60.0  # for engines that were installed or removed meanwhile
_PACKAGES = ("engine-tuner", "triton", "torch")


def describe(gpu: LocalGpu | None, devices: Sequence[str] | None, name: str) -> WorkerInfo:
    """This process as a worker. `name` tells it from the host's other workers."""
    host = socket.gethostname()
    full = f"{name}@{host}"
    return WorkerInfo(
        # A reboot gives out the same process ids again.
        id=f"{full}:{os.getpid()}:{secrets.token_hex(3)}",
        name=full,
        host=host,
        gpu=gpu.uuid if gpu else "",
        device=gpu.device if gpu else "",
        devices=tuple(devices) if devices is not None else None,
        engines=engines_here(),
        packages=_packages(),
    )


def engines_here() -> tuple[str, ...]:
    """The engines on this machine, as `sglang==0.5.16`; the one that `sglang` means comes first."""
    found: list[str] = []
    for name in engine_names():
        versions = {one.version for one in find_packages(name)}
        if versions:
            preferred = find_engine(name).version
            others = sorted(versions - {preferred}, key=version_order, reverse=True)
            found += [f"{name}=={version}" for version in (preferred, *others)]
    return tuple(found)


class Registration:
    """Keeps a worker's row up to date. Threads may share it."""

    def __init__(
        self,
        workers: WorkerStore,
        info: WorkerInfo,
        engines: Callable[[], tuple[str, ...]] = engines_here,
    ) -> None:
        self._workers = workers
        self._engines = engines
        self._look_at = time.monotonic() + LOOK_EVERY_S
        self._failed_starts = 0
        self.info = info

    def beat(self) -> None:
        """Say that the worker lives, and what it can do now. Raises UnusableStore."""
        if time.monotonic() >= self._look_at:
            self.info = self.info.with_engines(self._engines())
            self._look_at = time.monotonic() + LOOK_EVERY_S
        state = self._workers.beat(self.info)
        if state is WorkerState.ACTIVE and self._failed_starts >= FAILED_STARTS:
            log.info("%s was resumed", self.info.name)
            self._failed_starts = 0

    def started(self) -> None:
        """A job began to tune: whatever failed before is over."""
        self._failed_starts = 0

    def failed_to_start(self, reason: str) -> None:
        """A job could not begin to tune here. Raises UnusableStore."""
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            self._workers.set_aside(self.info.id, reason)
            log.error("%s takes no more jobs: %s", self.info.name, reason)

    def stopped(self) -> None:
        """The worker ends. Raises UnusableStore."""
        self._workers.stopped(self.info.id)


def _packages() -> dict[str, str]:
    return {name: version for name in _PACKAGES if (version := _version(name))}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
