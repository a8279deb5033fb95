"""What a server in this environment would make of its attention files, and why.

Nothing of the engine is imported, and no GPU is needed: what only a GPU or an installed triton
can tell is said to wait for it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tuner.attention_files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    attention_root,
    find_attention_files,
)
from tuner.compile.environment import installed_triton
from tuner.devices import Device
from tuner.engines import Engine
from tuner.errors import BadInput, CompilerUnavailable, TunerError
from tuner.kernels.attention import lift_attention
from tuner.plugin.kernels import GROUP, KERNELS, NAME
from tuner.plugin.verdicts import Here, Verdict, judge, title
from tuner.problems import ENGINE_KV_SPLITS, Attention, Phase
from tuner.render import table

SPLITS_FLAG = "--triton-attention-num-kv-splits"


@dataclass(frozen=True)
class AttentionStatus:
    """The answer of `tuner attention status`."""

    engine: Engine
    device: str | None
    triton: str | None
    variable: str | None  # that names the root; None: it was given, or there is none
    root: Path | None
    trouble: str  # why nothing at all would be used; empty if something may be
    verdicts: Sequence[Verdict]
    flags: Mapping[str, int | str]
    environment: Mapping[str, str]  # variables that a server still needs

    @property
    def ok(self) -> bool:
        """Whether anything is used, where there is anything."""
        return not self.verdicts or any(verdict.used for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": {
                "name": self.engine.name,
                "version": self.engine.version,
                "root": str(self.engine.root),
            },
            "device": self.device,
            "triton": self.triton,
            "variable": self.variable,
            "root": str(self.root) if self.root else None,
            "trouble": self.trouble or None,
            "files": [_as_json(verdict) for verdict in self.verdicts],
            "server_flags": dict(self.flags),
            "environment": dict(self.environment),
        }

    def as_text(self) -> str:
        lines = [f"{self.engine.name} {self.engine.version} ({self.engine.root})"]
        lines.append(f"GPU: {self.device or 'not known here'}; triton: {self.triton or 'none'}")
        if self.root is None:
            lines.append(f"no attention files: set {CONFIG_DIR_VARIABLE} to where they are")
            return "\n".join(lines)
        named = f" ({self.variable})" if self.variable else ""
        lines.append(f"files under {self.root / FOLDER}{named}: {len(self.verdicts)}")
        if self.trouble:
            lines.append(f"none would be used: {self.trouble}")
        if self.verdicts:
            rows = [_row(verdict, self.trouble) for verdict in self.verdicts]
            lines += ["", table(("problem", "entries", "would be", "why"), rows)]
        if any(verdict.used for verdict in self.verdicts):
            lines += ["", f"start the server with: {_command_line(self.flags)}"]
            lines += [f"export {k}={shlex.quote(v)}" for k, v in self.environment.items()]
        return "\n".join(lines)


def attention_status(
    engine: Engine, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> AttentionStatus:
    """`root`: where the files are; None: where the environment says.

    Raises BadInput for a root that is no folder.
    """
    found = None if root else attention_root(environ)
    place = root or (found[1] if found else None)
    if place and not place.is_dir():
        source = f"{found[0]} names {place}, which" if found else str(place)
        raise BadInput(f"{source} is not a folder")
    trouble = _trouble(engine, environ)
    triton = _triton()
    paths = find_attention_files(place) if place else []
    verdicts = _verdicts(paths, engine, device, triton)
    if trouble:
        verdicts = [replace(v, reason=v.reason or trouble) for v in verdicts]
    used = [verdict for verdict in verdicts if verdict.used]
    return AttentionStatus(
        engine=engine,
        device=device.name if device else None,
        triton=triton,
        variable=found[0] if found else None,
        root=place,
        trouble=trouble,
        verdicts=verdicts,
        flags=_flags(used, _splits_flag(used, capped=_caps_mla(engine))),
        environment={CONFIG_DIR_VARIABLE: str(root.resolve())} if used and root else {},
    )


def mla_kv_splits(flag: int, sm_count: int, context: int) -> int:
    """The parts into which sglang splits a sequence of an MLA model for decode, at the most.

    Since 0.5.12 (`_mla_decode_kv_splits_cap` of its attention backend) the flag is only the least.
    `context`: tokens that the server allows a sequence.
    """
    by_context = _power_of_two(-(-context // 32))
    return max(flag, min(_power_of_two(sm_count), by_context))


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _verdicts(
    paths: Sequence[Path], engine: Engine, device: Device | None, triton: str | None
) -> list[Verdict]:
    capped = _caps_mla(engine)

    def judged(flag: int | None) -> list[Verdict]:
        here = Here(
            engine=engine.name,
            engine_version=engine.version,
            device=device.name if device else None,
            triton=triton,
            kernel_hash=lambda: lift_attention(engine).hash,
            kv_splits=lambda problem: _launched_splits(problem, flag, device, capped=capped),
        )
        return [judge(path, here) for path in paths]

    return judged(_splits_flag(judged(None), capped=capped))


def _splits_flag(verdicts: Sequence[Verdict], *, capped: bool) -> int | None:
    """The number of splits that the server should be told: it takes one for all layers.

    That of a file that asks for it, else of the first that was made for one.
    """
    files = [v.file for v in verdicts if v.used and v.file and v.file.problem.phase is Phase.DECODE]
    told = [f.problem.kv_splits for f in files if not (capped and f.problem.shares_kv)]
    asked = [f.problem.kv_splits for f in files if SPLITS_FLAG in f.server_flags]
    return next(iter([*asked, *told]), None)


def _launched_splits(
    problem: Attention, flag: int | None, device: Device | None, *, capped: bool
) -> frozenset[int] | None:
    if not (capped and problem.shares_kv):
        return None if flag is None else frozenset({flag})
    if device is None:
        return None
    return frozenset({mla_kv_splits(flag or ENGINE_KV_SPLITS, device.sm_count, _LONG)})


_LONG = 1 << 20  # tokens: as many as leave the splits of MLA models to the GPU alone


def _caps_mla(engine: Engine) -> bool:
    backend = engine.root / "srt/layers/attention/triton_backend.py"
    return backend.is_file() and "_mla_decode_kv_splits_cap(" in backend.read_text(encoding="utf-8")


def _trouble(engine: Engine, environ: Mapping[str, str]) -> str:
    """Why the plugin would do nothing, whatever the files are."""
    origin = f"{engine.name} {engine.version}"
    if not engine.has_plugins():
        return f"{origin} has no plugins; of the versions that are tested 0.5.12 is the first"
    if why := _unfit(engine):
        return f"{origin}: {why}"
    if NAME not in {point.name for point in entry_points(group=GROUP)}:
        return "this Python does not know the plugin: install engine-tuner beside the engine"
    allowed = [name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",")]
    if any(allowed) and NAME not in allowed:
        return f"SGLANG_PLUGINS leaves out {NAME}"
    return ""


def _unfit(engine: Engine) -> str:
    """Why none of the engine's kernels could be hooked; empty if one could."""
    kernels = lift_attention(engine)
    reasons = []
    for kernel in KERNELS:
        phase = Phase(kernel.module.partition("_")[0])
        try:
            parameters = kernels.lifted(phase).parameters(kernel.name)
        except TunerError as error:
            reasons.append(str(error))
            continue
        reasons.append(kernel.unfit([parameter.name for parameter in parameters]))
    return "; ".join(reasons) if all(reasons) else ""


def _triton() -> str | None:
    try:
        return installed_triton()
    except CompilerUnavailable:
        return None


def _flags(used: Sequence[Verdict], splits: int | None) -> dict[str, int | str]:
    """What a server must be started with for these files to be used."""
    flags: dict[str, int | str] = {"--attention-backend": "triton"} if used else {}
    for verdict in used:
        flags |= verdict.file.server_flags if verdict.file else {}
    return flags | ({SPLITS_FLAG: splits} if splits not in (None, ENGINE_KV_SPLITS) else {})


def _command_line(flags: Mapping[str, int | str]) -> str:
    return " ".join(f"{name} {value}" for name, value in flags.items())


def _row(verdict: Verdict, trouble: str) -> tuple[object, ...]:
    name = title(verdict.file.problem) if verdict.file else verdict.path.name
    entries = len(verdict.file.entries) if verdict.file else None
    if not verdict.used:
        return name, entries, "refused", "" if verdict.reason == trouble else verdict.reason
    waits = f"waits for {', '.join(verdict.waits)}" if verdict.waits else ""
    return name, entries, "used", waits


def _as_json(verdict: Verdict) -> dict[str, Any]:
    file = verdict.file
    return {
        "path": str(verdict.path),
        "problem": file.problem.spec() if file else None,
        "device": file.device if file else None,
        "engine_version": file.engine_version if file else None,
        "triton": file.triton if file else None,
        "entries": len(file.entries) if file else 0,
        "used": verdict.used,
        "reason": verdict.reason or None,
        "waits": list(verdict.waits),
    }
