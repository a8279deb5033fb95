"""Bind sglang's fused-MoE kernels the way its `invoke_fused_moe_kernel` launches them.

Source of every value: `invoke_fused_moe_kernel` and `_fused_moe_kernel_sequence` in sglang
0.4.4 to 0.5.23 on CUDA and HIP, for one rank without LoRA. SGLANG_MOE_PADDING, which AMD's
images may set, is assumed to be off. It makes rows of weights longer, by a multiple of 16 elements,
and leaves K as it is, so machine code stays the same.

One compiled variant serves many batch sizes. Only EM (slots after padding) and num_valid_tokens
(M * top_k) change with the batch size, and Triton specialises them only on "is 1" and "is a
multiple of 16". EM is rounded up to a multiple of 16, at most one empty block more than the
engine launches, so it never causes another variant. num_valid_tokens keeps its true value, so
all M with M * top_k divisible by 16 share one variant, and all others share a second.
(From sglang 0.5.23 on sm_90 and later, GDC_EARLY splits the variants again at 512 rows.)
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import AMD_OPTIONS, launch_options
from tuner.engines.sglang.fused_moe.arguments import (
    DENSE,
    GROUPED,
    MoeLaunch,
    arguments_of,
    compute_of,
    kernel_name,
)
from tuner.engines.sglang.package import SGLang, find_source
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.families.fused_moe.engine import MoeKernels
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import Binding, Constant, bind
from tuner.kernels.lift import Lifted, lift
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, triton_defaults

_LOCATIONS = (  # of the kernels, in versions since 0.4.4
    "kernels/ops/moe/fused_moe_triton_kernels.py",
    "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
    "srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
    "srt/layers/moe/fused_moe_triton/fused_moe.py",
)
GDC_EARLY_ROWS = 512


@dataclass(frozen=True)
class FusedMoeKernels(MoeKernels):
    """The fused-MoE kernels of one engine version."""

    lifted: Lifted

    def bind(
        self,
        problem: FusedMoe,
        gemm: Gemm,
        batch_size: int,
        config: Config,
        target: Target,
        *,
        sorted_output: bool = False,
        filter_expert: bool = False,
        zero_points: bool = False,
        compute: str | None = None,
    ) -> Binding:
        """Bind the kernel that the engine launches for `gemm` at `batch_size` tokens.

        `sorted_output`: this is the up gemm, and the down gemm uses TMA. `filter_expert`: the
        layer runs under expert parallelism. `zero_points`: weights are asymmetric (AWQ).
        `compute`: the 16-bit type beside quantised weights, "bf16" (the default) or "fp16".

        Raises UnsupportedKernel for a parameter, a config key or a dtype that either the
        engine's kernel or this function does not support.
        """
        launch = MoeLaunch(
            problem, gemm, batch_size, config, target, sorted_output, compute or compute_of(problem)
        )
        function = kernel_name(problem)
        parameters = self.lifted.parameters(function)
        names = {parameter.name for parameter in parameters}
        self._check(launch, function, names)
        allowed = launch_options(target.backend)
        known = {
            **arguments_of(launch, filter_expert=filter_expert, zero_points=zero_points),
            **{k: Constant(v) for k, v in config.items() if k not in allowed},
        }
        options: dict[str, int | bool] = {
            **triton_defaults(target.backend),
            **{name: value for name, value in config.items() if name in allowed},
        }
        if "USE_GDC" in names and architecture(target).has_pdl:  # is_arch_support_pdl()
            known |= {
                "USE_GDC": Constant(True),
                "GDC_EARLY": Constant(launch.a_rows <= GDC_EARLY_ROWS),
            }
            options["launch_pdl"] = True
        return bind(self.lifted.origin, function, parameters, known, options)

    def has_tma(self) -> bool:
        """Whether this release's kernel can read through TMA: 0.5.12's and later ones can."""
        return any(parameter.name == "a_desc" for parameter in self.lifted.parameters(DENSE))

    def _check(self, launch: MoeLaunch, function: str, names: set[str]) -> None:
        origin = self.lifted.origin
        tiles = {name for name in names if name.startswith(("BLOCK_SIZE_", "GROUP_SIZE_"))}
        options = launch_options(launch.target.backend)
        choices = {*tiles, *options, *({"USE_TMA"} if "a_desc" in names else ())}
        for key in launch.config:
            if key not in choices:
                where = f" on {launch.target.name}" if key in AMD_OPTIONS else ""
                near = "" if where else did_you_mean(key, choices)
                raise UnsupportedKernel(
                    f"{origin}: {function} takes no config key {key!r}{where}{near}"
                )
        missing = tiles - set(launch.config)
        if missing:
            raise UnsupportedKernel(f"{origin}: {function} needs {', '.join(sorted(missing))}")
        if launch.sorted_output and "c_sorted" not in names:
            raise UnsupportedKernel(f"{origin}: {function} cannot write its output in slot order")
        problem = launch.problem
        fp8_channel = problem.per_channel_quant and problem.dtype is Dtype.FP8_W8A8
        if fp8_channel and "per_channel_quant" not in names:
            raise UnsupportedKernel(f"{origin}: {function} has no per-channel fp8")


def lift_fused_moe(engine: SGLang, backend: str = CUDA) -> FusedMoeKernels:
    """Lift the kernels of an engine on disk for a backend, "cuda" or "hip".

    Raises UnsupportedKernel; see `lift`.
    """
    origin = f"{engine.name} {engine.version}"
    source = find_source(engine, DENSE, _LOCATIONS)
    return FusedMoeKernels(lift(source, (DENSE, GROUPED), engine.root, origin, backend))
