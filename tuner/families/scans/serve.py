"""Give choices to a server's launches of the kernels of a chunked scan.

A kernel that an engine tunes itself is launched by `Autotuner.run` of Triton, and another one by
`JITFunction.run`. The kernel's `run` is replaced on the object: where a file has a choice for a
launch, the jitted function runs with it at once, else the old `run` does what it did. A choice
that cannot be launched is logged and never tried again. This module needs only the standard
library, because it runs inside servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.errors import MalformedConfigFile
from tuner.families.scans.files import ScanFile, find_scan_files, read_scan_file
from tuner.families.chunk_scan.problem import ChunkScan, ScanKernel
from tuner.problems.points import Config

log = logging.getLogger("tuner.plugin")

# sglang's and vLLM's kernels have one origin, and kept its names.
KERNELS = {
    "_chunk_cumsum_fwd_kernel": ScanKernel.CUMSUM,
    "_chunk_state_fwd_kernel": ScanKernel.STATE,
    "_chunk_state_varlen_kernel": ScanKernel.STATE,
    "_state_passing_fwd_kernel": ScanKernel.PASSING,
    "_bmm_chunk_fwd_kernel": ScanKernel.BMM,
    "_chunk_scan_fwd_kernel": ScanKernel.SCAN,
}
MODULES = ("ssd_chunk_state", "ssd_state_passing", "ssd_bmm", "ssd_chunk_scan")
_VLLM_LAUNCH = "launch_autotuned"  # keeps an autotuner's first choice, and calls no `run` again

Key = tuple[object, ...]


@dataclass(frozen=True)
class ServerFacts:
    """What a file is compared with. None: not known here."""

    engine: str
    engine_version: str
    device: str | None  # as engines write it, e.g. NVIDIA_H200
    triton: str | None
    kernel_hash: Callable[[], str]  # of this engine's kernels; may raise TunerError

    def refusal(self, file: ScanFile) -> str:
        """Why a server may not use a file; empty if it may."""
        here = {"engine": self.engine, "device": self.device, "triton": self.triton}
        for name, known in here.items():
            made = getattr(file, name)
            if known not in (None, made):
                return f"made for {name} {made}, this is {known}"
        if self.kernel_hash() != file.kernel_hash:
            version = f"{file.engine} {file.engine_version}"
            return f"made for {version}, whose kernels are not those of {self.engine_version}"
        return ""


@dataclass
class ScanChoices:
    """The choices of the files under a root, for this process. Files are read at the first launch:
    by then the GPU is chosen.
    """

    root: Path
    facts: Callable[[], ServerFacts]
    _answers: dict[Key, Config | None] = field(default_factory=dict)
    _refused: set[tuple[ScanKernel, Config]] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)

    def config(self, part: ScanKernel, named: Mapping[str, Any]) -> Config | None:
        """The choice for a launch with these arguments; None: the engine decides. Never raises."""
        try:
            key = _seen(part, named)
            if key not in self._answers:
                self._answers[key] = self._find(part, key)
            return self._answers[key]
        except Exception:
            self._say(f"{part.value}: left alone, because its launch is not understood")
            log.debug("tuner scan", exc_info=True)
            return None

    def refuse(self, part: ScanKernel, config: Config, error: Exception) -> None:
        """Never use a choice again that could not be launched."""
        self._refused.add((part, config))
        self._answers.clear()
        text = " ".join(str(error).split())[:300]
        self._say(f"{part.value}: {config.key} cannot be launched here, and is left out: {text}")

    def _find(self, part: ScanKernel, key: Key) -> Config | None:
        for file in self._files:
            *exact, tokens = key
            if _wanted(part, file.problem) != tuple(exact):
                continue
            entry = file.pick(part, int(str(tokens)))
            if entry is not None and (part, entry.config) not in self._refused:
                return entry.config
        self._say(f"{part.value}: no choice for {key[:-1]}, so the engine decides")
        return None

    @cached_property
    def _files(self) -> list[ScanFile]:
        facts, found = self.facts(), []
        for path in find_scan_files(self.root):
            try:
                file = read_scan_file(path)
            except MalformedConfigFile as error:
                self._say(f"refused {error}")
                continue
            reason = facts.refusal(file)
            self._say(f"refused {path}: {reason}" if reason else f"{file.title} from {path}")
            found += [] if reason else [file]
        return found

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("tuner scan: %s", text)


def hook_module(module: ModuleType, choices: ScanChoices) -> None:
    """Hook the kernels that a module of an engine defines."""
    hooked = {}
    for name, part in KERNELS.items():
        kernel = vars(module).get(name)
        if kernel is not None and _jitted(kernel).__module__ == module.__name__:
            hook_kernel(kernel, part, choices)
            hooked[id(kernel)] = part
    if hooked and (launch := vars(module).get(_VLLM_LAUNCH)):
        vars(module)[_VLLM_LAUNCH] = _around_launch(launch, hooked, choices)


def hook_kernel(kernel: Any, part: ScanKernel, choices: ScanChoices) -> None:  # noqa: ANN401
    """Replace `run` of an `Autotuner` or a `JITFunction`."""
    jitted = _jitted(kernel)
    decide, launch, names = kernel.run, jitted.run, jitted.arg_names

    def run(*args: object, **kwargs: object) -> object:
        config = choices.config(part, {**dict(zip(names, args, strict=False)), **kwargs})
        if config is None:
            return decide(*args, **kwargs)
        try:
            return launch(*args, **{**kwargs, **config})
        except Exception as error:  # out of shared memory, or a compiler's refusal
            choices.refuse(part, config, error)
            return decide(*args, **kwargs)

    kernel.run = run


def _jitted(kernel: Any) -> Any:  # noqa: ANN401
    """The `JITFunction` of an `Autotuner`, or the kernel itself."""
    return kernel.fn if hasattr(kernel, "configs") else kernel


def _around_launch(
    original: Callable[..., None], hooked: Mapping[int, ScanKernel], choices: ScanChoices
) -> Callable[..., None]:
    def launch(kernel: Any, grid: object, **kwargs: object) -> None:  # noqa: ANN401
        part = hooked.get(id(kernel))
        if part is None or choices.config(part, kwargs) is None:
            original(kernel, grid, **kwargs)
        else:
            kernel[grid](**kwargs)

    return launch


def _seen(part: ScanKernel, named: Mapping[str, Any]) -> Key:
    """What a launch shows of its problem, and its tokens, as whole chunks."""
    size = named["chunk_size"]
    match part:
        case ScanKernel.CUMSUM:
            exact: Key = (named["nheads"], _dtype(named["dt_ptr"]))
            chunks = named["dA_cumsum_ptr"].shape[-2]
        case ScanKernel.PASSING:
            states = named["states_ptr"]
            exact = (states.shape[-2], named["dim"], _dtype(named["out_ptr"]))
            chunks = named["dA_cs_ptr"].shape[-2]
        case ScanKernel.BMM:
            exact = (named["ngroups"], named["K"], _dtype(named["a_ptr"]))
            chunks = named["out_ptr"].shape[-4]
        case _:
            x = named["x_ptr"]
            sizes = x.shape[-2], named["hdim"], named["nheads_ngroups_ratio"], named["dstate"]
            exact = (*sizes, _dtype(x))
            chunks = named["dA_cumsum_ptr"].shape[-2]
    return (part.value, size, *exact, chunks * size)


def _wanted(part: ScanKernel, problem: ChunkScan) -> Key:
    """What a launch for a problem shows, without its tokens."""
    p, dtype = problem, problem.dtype.value
    exact: Key = {
        ScanKernel.CUMSUM: (p.heads, dtype),
        ScanKernel.PASSING: (p.heads, p.head_dim * p.state_size, p.state_dtype),
        ScanKernel.BMM: (p.groups, p.state_size, dtype),
    }.get(part, (p.heads, p.head_dim, p.heads // p.groups, p.state_size, dtype))
    return (part.value, p.chunk_size, *exact)


def _dtype(tensor: Any) -> str:  # noqa: ANN401
    return str(tensor.dtype).removeprefix("torch.")
