"""Bind sglang's dense GEMM kernels the way its own launchers launch them.

M, N and K are no constants of the kernels. Triton specialises them, and the strides that follow
from them, only on "is 1" and "is a multiple of 16". So problems of a type share machine code: a
configuration has variants for M = 1, for multiples of 16 and for other M, each for K whose number
of quantisation blocks is a multiple of 16 and for other K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuner.bindings.sglang.dense_gemm.launchers import GemmLaunchers
from tuner.bindings.sglang.dense_gemm.sources import lift_kernels
from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import REQUIRED_FIELDS, launch_config, launch_options
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.families.dense_gemm.engine import GemmKernels, GemmLaunch
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.kernels.binding import (
    Argument,
    Pointer,
    argument_of,
    bind,
    refuse_empty_tiles,
)
from tuner.kernels.launcher import Followed, KernelLaunch, TensorSpec
from tuner.kernels.lift import Lifted
from tuner.problems.points import TRITON_DEFAULTS, Config, triton_defaults

OUTPUT = "c"
_SPLITS = (1, 2, 4, 8, 16, 32)
# A key, and a value of the key that a kernel cannot ignore.
_OPTIONAL = {"SWAP_AB": 1, "SPLIT_K": 2}


@dataclass(frozen=True)
class SGLangGemmKernels(GemmKernels):
    """The dense GEMM kernels of a version of sglang."""

    launchers: GemmLaunchers
    platform: str = CUDA
    _taken: dict[tuple[str, tuple[int, int] | None, str, Target], frozenset[str]] = field(
        default_factory=dict
    )

    @cached_property
    def lifted(self) -> Lifted:  # type: ignore[override]  # lifted on first use
        return lift_kernels(self.launchers.engine, self.platform)

    def default_config(self, problem: DenseGemm, batch_size: int, target: Target) -> Config:
        launch = self._followed(problem, batch_size, None, target).launches[0]
        tiles = {k: launch.arguments[k] for k in REQUIRED_FIELDS if k in launch.arguments}
        return launch_config(Config({**tiles, **launch.options}), target.platform)

    def choices(self, problem: DenseGemm, target: Target) -> Mapping[str, tuple[int, ...]]:
        taken = self._optional_keys(problem, target)
        found = dict(architecture(target).launch_options) if problem.block else {}
        if "SWAP_AB" in taken:
            found["SWAP_AB"] = (0, 1)
        if "SPLIT_K" in taken and problem.block:
            blocks = -(-problem.K // problem.block[1])
            found["SPLIT_K"] = tuple(n for n in _SPLITS if n <= blocks)
        return found

    def launches(
        self, problem: DenseGemm, batch_size: int, config: Config, target: Target
    ) -> list[GemmLaunch]:
        self._check(problem, config, target)
        entry: Config | None = self.launchers.loaded(problem, config, target)
        if not self.launchers.takes_entries(problem) and entry == self.default_config(
            problem, batch_size, target
        ):
            entry = None
        followed = self._followed(problem, batch_size, entry, target)
        return [self._launch(launch, followed, target) for launch in followed.launches]

    def _followed(
        self, problem: DenseGemm, batch_size: int, entry: Config | None, target: Target
    ) -> Followed:
        followed = self.launchers.follow(problem, batch_size, entry, target)
        if not followed.launches:
            raise UnsupportedKernel(
                f"{self.launchers.origin} launches no Triton kernel for {problem.spec()}"
            )
        return followed

    def _launch(self, launch: KernelLaunch, followed: Followed, target: Target) -> GemmLaunch:
        parameters = self.lifted.parameters(launch.kernel)
        constants = {p.name for p in parameters if p.constexpr}
        operands = _operands(followed)
        known: dict[str, Argument] = {}
        scratch: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, value in launch.arguments.items():
            if isinstance(value, TensorSpec):
                operand = operands[id(value)]
                known[name] = Pointer(value.dtype, operand)
                if not value.name and operand != OUTPUT:
                    scratch[operand] = value.shape, value.dtype
            else:
                known[name] = argument_of(name, value, constant=name in constants)
        self._check_options(launch, target)
        options = {**triton_defaults(target.platform), **launch.options}
        binding = bind(self.launchers.origin, launch.kernel, parameters, known, options)
        return GemmLaunch(binding, launch.grid, scratch)

    def _check(self, problem: DenseGemm, config: Config, target: Target) -> None:
        tiles = REQUIRED_FIELDS if problem.block else REQUIRED_FIELDS[:3]
        needed = tiles if problem.block else (*tiles, *TRITON_DEFAULTS)
        options = launch_options(target.platform) if problem.block else tuple(TRITON_DEFAULTS)
        known = {*tiles, *options, *self._optional_keys(problem, target)}
        what = f"{self.launchers.origin}: {problem.spec()} on {target.name}"
        for key in config:
            if key not in known:
                raise UnsupportedKernel(
                    f"{what} takes no config key {key!r}{did_you_mean(key, known)}"
                )
        if missing := [key for key in needed if key not in config]:
            raise UnsupportedKernel(f"{what} needs {', '.join(missing)}")
        refuse_empty_tiles(what, config)

    def _check_options(self, launch: KernelLaunch, target: Target) -> None:
        known = launch_options(target.platform)
        if unknown := [name for name in launch.options if name not in known]:
            raise UnsupportedKernel(
                f"{self.launchers.origin}: {launch.kernel} has no {', '.join(unknown)}"
            )

    def _optional_keys(self, problem: DenseGemm, target: Target) -> frozenset[str]:
        """Return the keys beside tiles and options that an entry may have, because a kernel takes
        them.
        """
        if problem.block is None:
            return frozenset()
        key = problem.dtype.value, problem.block, problem.out.value, target
        if key not in self._taken:
            default = self.default_config(problem, 16, target)
            self._taken[key] = frozenset(
                name
                for name, value in _OPTIONAL.items()
                if self._takes(problem, default.replace(**{name: value}), name, target)
            )
        return self._taken[key]

    def _takes(self, problem: DenseGemm, config: Config, name: str, target: Target) -> bool:
        first = self._followed(problem, 16, config, target).launches[0]
        return name in first.arguments


def _operands(followed: Followed) -> dict[int, str]:
    """Return the name of each tensor, by its identity: equal shapes may be different tensors."""
    names = {id(followed.result): OUTPUT}
    scratch = 0
    for launch in followed.launches:
        for value in launch.arguments.values():
            if isinstance(value, TensorSpec) and id(value) not in names:
                scratch += not value.name
                names[id(value)] = value.name or f"scratch{scratch}"
    return names
