"""The GPUs of this machine, as the driver's own library names them; torch is not needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.devices.table import find_device
from tuner.errors import UnknownDevice

# From `tuner worker` to its processes.
WORKER_VARIABLE = "TUNER_WORKER_GPU"  # UUID=DEVICE
DEVICES_VARIABLE = "TUNER_WORKER_DEVICES"
FLEET_VARIABLE = "TUNER_WORKER_FLEET"  # the process that started it

log = logging.getLogger("tuner.gpus")


@dataclass(frozen=True)
class LocalGpu:
    """One GPU that jobs can be measured on."""

    uuid: str  # GPU-..., which CUDA_VISIBLE_DEVICES takes whatever the order of the cards
    device: str  # the device table's name


def detect_gpus() -> list[LocalGpu]:
    """The GPUs that the device table knows; none where there is no driver, with a log line why."""
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
    """(uuid, name) pairs to the GPUs of the device table; others are left out with a log line."""
    gpus = []
    for uuid, name in named:
        try:
            gpus.append(LocalGpu(uuid, find_device(name).name))
        except UnknownDevice as error:
            log.warning("GPU %s is left out: %s", uuid, error)
    return gpus


def gpu_of(environ: Mapping[str, str] = os.environ) -> LocalGpu | None:
    """The GPU that `tuner worker` gave to this process."""
    text = environ.get(WORKER_VARIABLE)
    return LocalGpu(*text.split("=", 1)) if text else None


def worker_environ(gpu: LocalGpu | None, devices: Sequence[str] | None) -> dict[str, str]:
    """What `gpu_of` and `devices_of` read back."""
    return {
        WORKER_VARIABLE: f"{gpu.uuid}={gpu.device}" if gpu else "",
        DEVICES_VARIABLE: ",".join(devices or ()),
    }


def devices_of(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """The devices whose replays and predictions this process is to do; None: any."""
    text = environ.get(DEVICES_VARIABLE)
    return text.split(",") if text else None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
