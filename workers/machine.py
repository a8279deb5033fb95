"""Describe this machine as a worker: its GPUs, from the driver's library, its engines,
and its row.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from tuner.devices.here import VISIBLE, is_visible, visible_gpus
from tuner.devices.table import find_device
from tuner.engines.engine import engine_names, find_engine, find_packages, version_order
from tuner.errors import UnknownDevice
from tuner.jobs.workers import WorkerInfo, WorkerState
from tuner.store.workers import WorkerStore

# `tuner worker` sets these for its processes.
WORKER_VARIABLE = "TUNER_WORKER_GPU"  # UUID=DEVICE
DEVICES_VARIABLE = "TUNER_WORKER_DEVICES"
NAME_VARIABLE = "TUNER_WORKER_NAME"
GPU_VARIABLE = "TUNER_GPU"  # the GPU that a job's process measures on, by CUDA's name
FLEET_VARIABLE = "TUNER_WORKER_FLEET"  # the process id of `tuner worker`

_CHECK_DRIVER = "see that `nvidia-smi` works here; a container needs the GPUs (`--gpus all`)"

log = logging.getLogger("tuner.gpus")
worker_log = logging.getLogger("tuner.worker")


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine, on which jobs can be measured."""

    uuid: str  # GPU-...: CUDA_VISIBLE_DEVICES takes it, and it does not depend on the cards' order
    device: str  # the device table's name


def detect_gpus(root: Path = Path("/")) -> list[LocalGpu]:
    """Return the machine's GPUs that the device table knows and CUDA_VISIBLE_DEVICES has.

    Logs why none can be used. That is a warning if `root`, where the kernel shows its devices, has
    signs of an NVIDIA GPU.
    """
    try:
        import pynvml  # noqa: PLC0415  # an optional extra, and only a worker needs it
    except ImportError as error:
        _log_none(root, f"{error}: pip install nvidia-ml-py")
        return []
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        _log_none(root, f"{error}: {_CHECK_DRIVER}")
        return []
    named = []
    try:
        listed = _listed(pynvml)
        visible = visible_gpus()
        named = [(uuid, name) for at, uuid, name in listed if is_visible(at, uuid, visible)]
        if not listed:
            _log_none(root, f"the driver shows none: {_CHECK_DRIVER}")
        elif not named:  # a part of a GPU (MIG) is no GPU of the driver's list
            _log_none(root, f"{VISIBLE} names no whole GPU that the driver shows: unset it")
    except pynvml.NVMLError as error:
        _log_none(root, f"{error}: {_CHECK_DRIVER}")
    finally:
        pynvml.nvmlShutdown()
    return known_gpus(named)


def _listed(pynvml: ModuleType) -> list[tuple[int, str, str]]:
    """Return the driver's GPUs: number, uuid, name. Raises NVMLError."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError as error:  # a GPU that is lost must not hide the others
            log.warning("GPU %d is left out: %s", index, error)
        else:
            found.append((index, _text(uuid), _text(name)))
    return found


def _log_none(root: Path, why: str) -> None:
    if _has_nvidia(root):
        log.warning("this machine has an NVIDIA GPU, but it cannot be used: %s", why)
    else:
        log.info("no GPU: %s", why)


def _has_nvidia(root: Path) -> bool:
    """Say whether the driver is loaded, or the PCI bus has a display controller of NVIDIA."""
    if (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidia0").exists():
        return True
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError):
            kind = vendor.with_name("class").read_text()
            if vendor.read_text().strip() == "0x10de" and kind.startswith("0x03"):
                return True
    return False


def known_gpus(named: list[tuple[str, str]]) -> list[LocalGpu]:
    """Return the GPUs of (uuid, name) pairs. Logs and leaves out GPUs that are not in the device
    table.
    """
    gpus = []
    for uuid, name in named:
        try:
            gpus.append(LocalGpu(uuid, find_device(name).name))
        except UnknownDevice as error:
            log.warning("GPU %s is left out: %s", uuid, error)
    return gpus


def gpu_of(environ: Mapping[str, str] = os.environ) -> LocalGpu | None:
    """Return the GPU that `tuner worker` gave to this process; None: no GPU."""
    text = environ.get(WORKER_VARIABLE)
    return LocalGpu(*text.split("=", 1)) if text else None


def name_of(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name that `tuner worker` gave to this process."""
    return environ.get(NAME_VARIABLE) or "worker"


def worker_environ(
    gpu: LocalGpu | None, devices: Sequence[str] | None, name: str
) -> dict[str, str]:
    """Return the variables that `gpu_of`, `devices_of` and `name_of` read."""
    return {
        NAME_VARIABLE: name,
        WORKER_VARIABLE: f"{gpu.uuid}={gpu.device}" if gpu else "",
        DEVICES_VARIABLE: ",".join(devices or ()),
    }


def devices_of(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the devices whose replays and predictions this process does; None: all devices."""
    text = environ.get(DEVICES_VARIABLE)
    return text.split(",") if text else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


FAILED_STARTS = 2  # in a row, after which the worker is set aside
LOOK_EVERY_S = 60.0  # for engines that were installed or removed meanwhile
_PACKAGES = ("engine-tuner", "triton", "torch")


def describe(gpu: LocalGpu | None, devices: Sequence[str] | None, name: str) -> WorkerInfo:
    """Return this process as a worker. `name` tells it from the host's other workers."""
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
        packages={one: version for one in _PACKAGES if (version := _version(one))},
    )


def engines_here() -> tuple[str, ...]:
    """Return the engines on this machine, as `sglang==0.5.16`; the default of `sglang`
    comes first.
    """
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
        """Say that the worker lives, and which jobs it can do now. Raises UnusableStore."""
        if time.monotonic() >= self._look_at:
            self.info = self.info.with_engines(self._engines())
            self._look_at = time.monotonic() + LOOK_EVERY_S
        state = self._workers.beat(self.info)
        if state is WorkerState.ACTIVE and self._failed_starts >= FAILED_STARTS:
            worker_log.info("%s was resumed", self.info.name)
            self._failed_starts = 0

    def started(self) -> None:
        """Note that a job began to tune: earlier failures are over."""
        self._failed_starts = 0

    def failed_to_start(self, reason: str) -> None:
        """Note that a job could not begin to tune here. Raises UnusableStore."""
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            self._workers.set_aside(self.info.id, reason)
            worker_log.error("%s takes no more jobs: %s", self.info.name, reason)

    def stopped(self) -> None:
        """Note that the worker ends. Raises UnusableStore."""
        self._workers.stopped(self.info.id)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
