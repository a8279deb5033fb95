"""Bind sglang's attention kernels the way its own launchers launch them.

The engine's own code determines the kernels, their arguments and constants (`kernels.launcher`).
This module adds the inputs of the attention backend, and the constants that may change. Kernels get
neither lengths nor the batch size as numbers, so the same compiled kernel serves all points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.attention.backend import index_types, launcher_arguments
from tuner.bindings.sglang.plugin.kernels import CHOICES, FLAGS, FOLLOWERS, OPTIONS
from tuner.bindings.sglang.plugin.launch_keys import grid_rule
from tuner.devices.target import CUDA, Target
from tuner.engines.sglang.package import SGLang
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPart, AttentionPhase
from tuner.kernels.binding import Binding, Constant, argument_of, bind
from tuner.kernels.launcher import KernelLaunch, Launcher
from tuner.kernels.lift import Lifted, find_source, lift
from tuner.problems.points import Config, Point

# The folders of the launchers' modules, in versions since 0.4.4.
_FOLDERS = ("kernels/ops/attention", "srt/layers/attention/triton_ops")
LAUNCHERS = {
    AttentionPhase.EXTEND: ("extend_attention", "extend_attention_fwd"),
    AttentionPhase.PREFILL: ("prefill_attention", "context_attention_fwd"),
    AttentionPhase.DECODE: ("decode_attention", "decode_attention_fwd"),
}
KERNELS = {
    AttentionPhase.EXTEND: ("_fwd_kernel",),
    AttentionPhase.PREFILL: ("_fwd_kernel",),
    AttentionPhase.DECODE: (
        "_fwd_grouped_kernel_stage1",
        "_fwd_kernel_stage1",
        "_fwd_kernel_stage2",
    ),
}


@dataclass(frozen=True)
class SGLangAttentionKernels(AttentionKernels):
    """The attention kernels and launchers of a version of sglang."""

    engine: SGLang
    origin: str  # e.g. "sglang 0.5.16"; for messages
    platform: str = CUDA
    # In place of the engine's files.
    sources: Mapping[AttentionPhase, Path] = field(default_factory=dict)
    _launches: dict[tuple[Attention, Point, Target], KernelLaunch] = field(default_factory=dict)
    _launchers: dict[tuple[AttentionPhase, Target], Launcher] = field(default_factory=dict)

    def default_config(self, problem: Attention, point: Point, target: Target) -> Config:
        launch = self.launch(problem, point, target)
        both = {**launch.arguments, **launch.options}
        names = [name for name in CHOICES[_part(point)] if name in both]
        if not problem.shares_kv:  # only latent values can be taken out of keys
            names = [name for name in names if name != "HAS_MLA"]
        return Config({name: both[name] for name in names})

    def bind(self, problem: Attention, point: Point, config: Config, target: Target) -> Binding:
        """Bind the kernel. Raises UnsupportedKernel for a constant that the engine's kernel does
        not take.
        """
        launch = self.launch(problem, point, target)
        lifted = self.lifted(problem.phase)
        parameters = lifted.parameters(launch.kernel)
        default = self.default_config(problem, point, target)
        for key in config:
            if key not in default:
                near = did_you_mean(key, list(default))
                raise UnsupportedKernel(f"{self.origin}: {launch.kernel} has no {key!r}{near}")
        changed = {**default, **config}
        for leader, follower in FOLLOWERS.items():
            if leader in changed and launch.arguments.get(follower) == default[leader]:
                changed[follower] = changed[leader]
        known = {name: argument_of(name, value) for name, value in launch.arguments.items()}
        known |= {
            name: Constant(bool(v) if name in FLAGS else v)
            for name, v in changed.items()
            if name not in OPTIONS
        }
        options = {**launch.options, **{n: v for n, v in changed.items() if n in OPTIONS}}
        return bind(self.origin, launch.kernel, parameters, known, options)

    def grid(
        self, problem: Attention, point: Point, config: Config, target: Target
    ) -> tuple[int, ...]:
        """Return the grid. Raises UnsupportedKernel if the engine's grid follows an unknown
        rule.
        """
        launch = self.launch(problem, point, target)
        default = self.default_config(problem, point, target)
        part = _part(point)
        plain = point.batch_size, problem.q_heads, problem.most_splits
        sizes = launch.grid if part is AttentionPart.REDUCE else plain
        rule = partial(
            grid_rule, part, sizes, longest=point.new_tokens, q_heads=plain[1], group=problem.group
        )
        if rule(constants=default) != launch.grid:
            raise UnsupportedKernel(f"{self.origin}: {launch.kernel} has an unknown grid")
        return rule(constants={**default, **config})

    def launch(self, problem: Attention, point: Point, target: Target) -> KernelLaunch:
        key = problem, point, target
        if key not in self._launches:
            launcher = self._launcher(problem.phase, target)
            arguments = self.arguments(problem, point, target)
            for launch in launcher.run(LAUNCHERS[problem.phase][1], arguments):
                part = _part_of(problem.phase, launch.kernel)
                at = Point(point.batch_size, part, point.new_tokens, point.cached_tokens)
                self._launches[problem, at, target] = launch
        if key not in self._launches:
            raise UnsupportedKernel(f"{self.origin} launches nothing for {point} of {problem}")
        return self._launches[key]

    def lifted(self, phase: AttentionPhase) -> Lifted:
        return self._lifted[phase]

    @cached_property
    def _lifted(self) -> dict[AttentionPhase, Lifted]:
        engine, origin = self.engine, self.origin
        return {
            p: lift(self._source(p), KERNELS[p], engine.root, origin, self.platform)
            for p in AttentionPhase
        }

    @cached_property
    def index_types(self) -> dict[str, str]:
        """Return the types of index tensors in the engine's attention backend."""
        return index_types(self.engine.root, self.origin)

    def arguments(self, problem: Attention, point: Point, target: Target) -> dict[str, Any]:
        takes = self._launcher(problem.phase, target).parameters(LAUNCHERS[problem.phase][1])
        given = launcher_arguments(problem, point, target, takes, self.index_types)
        return {name: value for name, value in given.items() if name in takes}

    def _source(self, phase: AttentionPhase) -> Path:
        return self.sources.get(phase) or launcher_source(self.engine, phase)

    def _launcher(self, phase: AttentionPhase, target: Target) -> Launcher:
        key = phase, target
        if key not in self._launchers:
            source = self._source(phase)
            self._launchers[key] = Launcher(source, self.engine.root, self.origin, target)
        return self._launchers[key]


def launcher_source(engine: SGLang, phase: AttentionPhase) -> Path:
    """Return the file that defines a phase's launcher and kernels. Raises UnsupportedKernel."""
    module, function = LAUNCHERS[phase]
    places = [f"{folder}/{module}.py" for folder in _FOLDERS]
    return find_source(engine.root, f"{engine.name} {engine.version}", function, places)


def lift_attention(
    engine: SGLang, platform: str = CUDA, sources: Mapping[AttentionPhase, Path] | None = None
) -> SGLangAttentionKernels:
    """Return the attention kernels of an engine on disk for a platform, "cuda" or "hip".

    `sources` has files to read instead of the engine's own. The methods of the result may raise
    UnsupportedKernel; this function does not.
    """
    origin = f"{engine.name} {engine.version}"
    return SGLangAttentionKernels(engine, origin, platform, sources or {})


def _part(point: Point) -> AttentionPart:
    assert isinstance(point.part, AttentionPart), f"{point} is no attention's"
    return point.part


def _part_of(phase: AttentionPhase, kernel: str) -> AttentionPart:
    if phase is not AttentionPhase.DECODE:
        return AttentionPart(phase.value)
    return AttentionPart.REDUCE if kernel.endswith("stage2") else AttentionPart.DECODE
