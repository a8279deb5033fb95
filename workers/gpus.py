"""The GPUs of this machine, from the driver's library. It needs no torch."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.devices.table import find_device
from tuner.errors import UnknownDevice

# `tuner worker` sets these for its processes.
WORKER_VARIABLE = "TUNER_WORKER_GPU"  # UUID=DEVICE
DEVICES_VARIABLE = "TUNER_WORKER_DEVICES"
NAME_VARIABLE = "TUNER_WORKER_NAME"
FLEET_VARIABLE = "TUNER_WORKER_FLEET"  # the process id of `tuner worker`

log = logging.getLogger("tuner.gpus")


@dataclass(frozen=True)
class LocalGpu:
    """A GPU of this machine, on which jobs can be measured."""

    uuid: str  # GPU-...: CUDA_VISIBLE_DEVICES takes it, and it does not depend on the cards' order
    device: str  # the device table's name


def detect_gpus() -> list[LocalGpu]:
    """The machine's GPUs that the device table knows. Logs why, where there are none."""
    try:
        import pynvml  # noqa: PLC0415  # an optional extra, and only a worker needs it

        pynvml.nvmlInit()
    except (ImportError, OSError) as error:
        log.info("no GPU: nvidia-ml-py is not installed (%s)", error)
        return []
    except pynvml.NVMLError as error:
        log.info("no GPU: %s", error)
        return []
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        named = [
            (_text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle)))
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()
    return known_gpus(named)


def known_gpus(named: list[tuple[str, str]]) -> list[LocalGpu]:
    """The GPUs, from (uuid, name) pairs. Logs and leaves out those not in the device table."""
    gpus = []
    for uuid, name in named:
        try:
            gpus.append(LocalGpu(uuid, find_device(name).name))
        except UnknownDevice as error:
            log.warning("GPU %s is left out: %s", uuid, error)
    return gpus


def gpu_of(environ: Mapping[str, str] = os.environ) -> LocalGpu | None:
    """The GPU that `tuner worker` gave to this process; None: no GPU."""
    text = environ.get(WORKER_VARIABLE)
    return LocalGpu(*text.split("=", 1)) if text else None


def name_of(environ: Mapping[str, str] = os.environ) -> str:
    """What `tuner worker` calls this process."""
    return environ.get(NAME_VARIABLE) or "worker"


def worker_environ(
    gpu: LocalGpu | None, devices: Sequence[str] | None, name: str
) -> dict[str, str]:
    """The variables that `gpu_of`, `devices_of` and `name_of` read."""
    return {
        NAME_VARIABLE: name,
        WORKER_VARIABLE: f"{gpu.uuid}={gpu.device}" if gpu else "",
        DEVICES_VARIABLE: ",".join(devices or ()),
    }


def devices_of(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """The devices whose replays and predictions this process does; None: all devices."""
    text = environ.get(DEVICES_VARIABLE)
    return text.split(",") if text else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
