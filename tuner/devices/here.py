"""The GPU of this machine, by its driver: no torch is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

from tuner.devices.table import Device, card_to_check, find_device
from tuner.errors import UnknownDevice

_QUERY = "nvidia-smi --query-gpu={} --format=csv,noheader,nounits"
_LIMIT_S = 20  # a driver that wakes up takes seconds


def card_to_check_or_here(name: str) -> Device:
    """Like `device_or_here`, for config files: a compute capability suffices (`card_to_check`)."""
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
    """The GPU of that name; without a name, the one kind of GPU that this machine has.

    Raises UnknownDevice, which names `--device`, where there is none here, or several kinds.
    """
    if name:
        return find_device(name)
    names = sorted(set(asked_here("name")))
    if len(names) == 1:
        return find_device(names[0])
    if names:
        raise UnknownDevice(f"this machine has {' and '.join(names)}: choose one with --device")
    raise UnknownDevice(
        "no GPU was found here by nvidia-smi: name the one to work for, e.g. --device H200; "
        "`tuner devices` lists them"
    )


def known_here() -> Device | None:
    """The first GPU of this machine that the device table knows."""
    for name in asked_here("name"):
        with suppress(UnknownDevice):
            return find_device(name)
    return None


def device_of_gpus(name: str, gpus: Sequence[str]) -> Device:
    """The kind of the GPUs of this machine with these numbers, as nvidia-smi numbers them.

    Raises UnknownDevice where they are of several kinds, of another kind than `name`, or not there.
    Without nvidia-smi, `name` is believed.
    """
    here = asked_here("name")
    if not here:
        return device_or_here(name)
    if missing := [gpu for gpu in gpus if int(gpu) >= len(here)]:
        raise UnknownDevice(
            f"nvidia-smi lists the GPUs 0 to {len(here) - 1} here, and no GPU {missing[0]}"
        )
    names = {gpu: here[int(gpu)] for gpu in gpus}
    if not name and len(set(names.values())) > 1:
        told = ", ".join(f"GPU {gpu} is {one}" for gpu, one in names.items())
        raise UnknownDevice(f"{told}: name GPUs of one kind in --gpus")
    wanted = find_device(name or next(iter(names.values())))
    for gpu, one in names.items():
        if find_device(one) != wanted:
            raise UnknownDevice(
                f"GPU {gpu} here is {one}, and not {wanted.name}: leave --device out, or name "
                "another GPU in --gpus"
            )
    return wanted


def asked_here(fields: str, limit_s: float = _LIMIT_S) -> list[str]:
    """What nvidia-smi says of each GPU, without units; nothing without an answer."""
    try:
        done = subprocess.run(  # noqa: S603 (the driver's own program)
            _QUERY.format(fields).split(), capture_output=True, text=True, timeout=limit_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
