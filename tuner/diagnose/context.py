"""What is known of a server beside its messages: from its log, and from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.devices.table import Device, devices, find_device
from tuner.diagnose.findings import Finding
from tuner.engines.engine import Engine, find_engine
from tuner.errors import BadInput, UnknownDevice, UnknownEngine

ENGINES = {"sglang": "sglang", "vllm": "vLLM"}  # by the name in paths, as forms name them


@dataclass(frozen=True)
class Hints:
    """What the command line says of the server; empty where it does not."""

    engine: str = ""  # "sglang" or "sglang==0.4.4"
    device: str = ""
    model: str = ""
    tp: int = 0


@dataclass(frozen=True)
class Context:
    """The hints, completed from the log's facts."""

    hints: Hints
    facts: Mapping[str, str]

    @property
    def model(self) -> str:
        """The name of the model, or its last part where it is a path of another machine."""
        return self.hints.model or self.facts.get("model", "").rstrip("/")

    @property
    def tp(self) -> int:
        return self.hints.tp or int(self.facts.get("tp", "0").replace(",", ""))

    def engine_name(self, finding: Finding) -> str:
        """The engine: sglang, vllm, or nothing where neither the hints nor the log tell."""
        if self.hints.engine:
            return self.hints.engine.partition("==")[0].strip().lower()
        for text in (*finding.values.values(), *(frame.path for frame in finding.frames)):
            for name in ENGINES:
                if f"/{name}/" in text.replace("\\", "/"):
                    return name
        programs = {origin.program.lower() for origin in finding.form.origins}
        if len(programs & ENGINES.keys()) == 1:
            return (programs & ENGINES.keys()).pop()
        return self.facts.get("engine", "").lower()

    @property
    def version(self) -> str:
        """The engine's version, where it is known."""
        return self.hints.engine.partition("==")[2].strip() or self.facts.get("version", "")

    def engine(self, name: str) -> Engine | None:
        """The engine on this machine, in the log's version; None where it is not here."""
        spec = self.hints.engine or (f"{name}=={self.version}" if self.version else name)
        try:
            return find_engine(spec)
        except UnknownEngine:
            return None

    def device(self, name: str = "") -> Device | None:
        """The GPU of the command line, else the one of that name or of the log, if it is known."""
        try:
            logged = self.facts.get("device", "").rstrip(".").removesuffix(".json")
            return find_device(self.hints.device or name or logged)
        except UnknownDevice:
            if self.hints.device:
                raise
            return None

    def values(self, finding: Finding) -> dict[str, str]:
        """What sentences may name."""
        known = {"model": self.model, "tp": str(self.tp or "")}
        known |= {k: v for k, v in self.facts.items() if k not in known}
        known |= {k: v.rstrip(".") for k, v in finding.values.items()}
        return {k: v for k, v in known.items() if v}


def devices_with(limit: int) -> list[Device]:
    """The GPUs on which a block has exactly so many bytes of shared memory."""
    return [device for device in devices() if device.shared_optin_bytes == limit]


def check_hints(hints: Hints) -> None:
    """Raises BadInput for a device or an engine that does not exist."""
    if hints.device:
        find_device(hints.device)
    name = hints.engine.partition("==")[0].strip().lower()
    if name and name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}; write sglang or vllm, or sglang==VERSION")
    if hints.tp < 0:
        raise BadInput(f"tensor-parallel sizes start at 1, not tp={hints.tp}")
