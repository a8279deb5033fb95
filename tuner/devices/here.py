"""The GPU of this machine, by its driver: no torch is needed."""

from __future__ import annotations

import subprocess

from tuner.devices.table import Device, card_to_check, find_device
from tuner.errors import UnknownDevice

_QUERY = "nvidia-smi --query-gpu={} --format=csv,noheader"
_LIMIT_S = 20  # a driver that wakes up takes seconds


def card_to_check_or_here(name: str) -> Device:
    """Like `device_or_here`, for config files: a compute capability suffices (`card_to_check`)."""
    if name:
        return card_to_check(name)
    try:
        return device_or_here("")
    except UnknownDevice:
        found = set(_asked_here("compute_cap"))
        if len(found) != 1:
            raise
    return card_to_check(found.pop())


def device_or_here(name: str) -> Device:
    """The GPU of that name; without a name, the one kind of GPU that this machine has.

    Raises UnknownDevice, which names `--device`, where there is none here, or several kinds.
    """
    if name:
        return find_device(name)
    names = sorted(set(_asked_here("name")))
    if len(names) == 1:
        return find_device(names[0])
    if names:
        raise UnknownDevice(f"this machine has {' and '.join(names)}: choose one with --device")
    raise UnknownDevice(
        "no GPU was found here by nvidia-smi: name the one to work for, e.g. --device H200; "
        "`tuner devices` lists them"
    )


def _asked_here(field: str) -> list[str]:
    """What nvidia-smi says of each GPU; nothing without an answer."""
    try:
        done = subprocess.run(  # noqa: S603 (the driver's own program)
            _QUERY.format(field).split(), capture_output=True, text=True, timeout=_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
