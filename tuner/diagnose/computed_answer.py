"""Hold the parts that a computation adds to the table's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.families.attention.engine import Remedy


@dataclass(frozen=True)
class LocalRemedy:
    """Hold a patch for a file on this machine."""

    engine: Engine
    device: Device
    remedy: Remedy


@dataclass(frozen=True)
class ComputedAnswer:
    """Hold sentences, and steps in the form of the table's."""

    cause: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)  # for --json
    mends: LocalRemedy | None = None
    instead: bool = False  # of the table's steps, which do not apply
