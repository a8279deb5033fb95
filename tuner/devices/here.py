"""Find the GPU of this machine by its driver: no torch is needed."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from itertools import takewhile

from tuner.devices.table import Device, card_to_check, find_device
from tuner.errors import BadInput, UnknownDevice

VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = "nvidia-smi --query-gpu={} --format=csv,noheader,nounits"
_LIMIT_S = 20  # a driver that wakes up takes seconds


def card_to_check_or_here(name: str) -> Device:
    """Find a card for config files: a name, a compute capability, or this machine's GPU."""
    if name:
        return card_to_check(name)
    try:
        return device_or_here("")
    except UnknownDevice:
        found = set(asked_here("compute_cap"))
        if len(found) != 1:
            raise
    return card_to_check(found.pop())


def device_or_here(name: str) -> Device:
    """Return the GPU of that name; without a name, this machine's only kind of GPU.

    Raises UnknownDevice, which names `--device`, if this machine has no GPU, or several kinds.
    """
    if name:
        return find_device(name)
    names = sorted(set(asked_here("name")))
    if len(names) == 1:
        return find_device(names[0])
    if names:
        raise UnknownDevice(f"this machine has {' and '.join(names)}: choose one with --device")
    raise UnknownDevice(
        "no GPU was found here by nvidia-smi: name the GPU to work for, e.g. --device H200; "
        "`tuner list devices` lists them"
    )


def visible_gpus() -> tuple[str, ...] | None:
    """Return the numbers and uuids in CUDA_VISIBLE_DEVICES; None: all GPUs may be used.

    As CUDA does, ignore the first name that is neither, such as -1, and all names after it.
    """
    if VISIBLE not in os.environ:
        return None
    names = [name.strip() for name in os.environ[VISIBLE].split(",")]
    return tuple(takewhile(lambda name: name.isdigit() or name[:4] in ("GPU-", "MIG-"), names))


def is_visible(number: int, uuid: str, visible: tuple[str, ...] | None) -> bool:
    """Say whether `visible_gpus` has the GPU of a number and a uuid. CUDA takes a
    uuid's beginning.
    """
    if visible is None or str(number) in visible:
        return True
    return any(uuid.startswith(name) for name in visible if name.startswith("GPU-"))


def gpu_to_measure_on(number: int | None) -> str:
    """Return CUDA's number or uuid of the GPU with nvidia-smi's `number`, else of the first.

    Raises BadInput if CUDA_VISIBLE_DEVICES does not name it: it may be somebody else's.
    """
    visible = visible_gpus()
    if visible is None:
        return str(number or 0)
    if not visible:
        raise BadInput(f"{VISIBLE} names no GPU: unset it, or name a GPU in it")
    if number is None:
        return visible[0]
    uuids = dict(enumerate(asked_here("uuid")))
    if not is_visible(number, uuids.get(number, ""), visible):
        raise BadInput(
            f"GPU {number} is not in {VISIBLE}={','.join(visible)}: leave --gpu out, or name the "
            f"GPU in {VISIBLE}"
        )
    return str(number)


def gpu_of_kind(card: Device) -> str | None:
    """Return nvidia-smi's number of the first GPU of that kind that may be used; None: there is
    none.
    """
    visible, uuids = visible_gpus(), dict(enumerate(asked_here("uuid")))
    for number, name in enumerate(asked_here("name")):
        with suppress(UnknownDevice):
            if find_device(name) == card and is_visible(number, uuids.get(number, ""), visible):
                return str(number)
    return None


def device_of_gpu(name: str, gpu: str) -> Device:
    """Return the kind of the GPU of this machine with nvidia-smi's number or uuid.

    Raises UnknownDevice if it is of another kind than `name`, or not there. `name` is believed
    without nvidia-smi, and for a part of a GPU (MIG), which nvidia-smi does not list.
    """
    here = asked_here("name")
    if gpu.isdigit():
        number = int(gpu)
        if here and number >= len(here):
            raise UnknownDevice(
                f"nvidia-smi lists the GPUs 0 to {len(here) - 1} here, and no GPU {gpu}"
            )
    else:
        uuids = asked_here("uuid")
        number = next((at for at, uuid in enumerate(uuids) if uuid.startswith(gpu)), len(here))
    if number >= len(here):
        return device_or_here(name)
    found = find_device(here[number])
    if name and find_device(name) != found:
        raise UnknownDevice(
            f"GPU {gpu} here is {here[number]}, and not {find_device(name).name}: leave --device "
            "out, or name another GPU in --gpu"
        )
    return found


def asked_here(fields: str, limit_s: float = _LIMIT_S) -> list[str]:
    """Return nvidia-smi's answer for each GPU, without units; nothing without an answer."""
    try:
        done = subprocess.run(  # noqa: S603 (the driver's own program)
            _QUERY.format(fields).split(), capture_output=True, text=True, timeout=limit_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
