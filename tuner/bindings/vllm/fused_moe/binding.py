"""Bind vLLM's fused-MoE kernels as its own launcher launches them, for one rank without LoRA.

The launcher and `moe_align_block_size` are run with stand-ins (see `functions.py`), so their
decisions are the release's own: SPLIT_K, SWAP_AB, the cap on BLOCK_SIZE_K, USE_TD (off unless
VLLM_TRITON_USE_TD is set), strides, and the number of blocks.

EM is rounded up to a multiple of 16, at most one empty block more than vLLM launches, so that its
value never makes another variant. num_valid_tokens (M * top_k) keeps its true value: all M for
which it is a multiple of 16 share a variant, and all others a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tuner.bindings.vllm.functions import EngineFunctions
from tuner.bindings.vllm.fused_moe.loader_rules import SOURCE
from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import REQUIRED_FIELDS, launch_options
from tuner.engines.vllm.package import VLLM
from tuner.errors import BadProblem, UnsupportedKernel, did_you_mean
from tuner.families.fused_moe.engine import MoeKernels
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import Binding, Integer, argument_of, bind, refuse_empty_tiles
from tuner.kernels.lift import Lifted, lift
from tuner.kernels.stand_ins import KernelLaunch, TensorSpec, TritonType
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, triton_defaults

DENSE = "fused_moe_kernel"
GROUPED = "fused_moe_kernel_gptq_awq"
# Since 0.14, `dispatch_fused_moe_kernel` chooses among launchers; before, there was only one.
_LAUNCHERS = ("dispatch_fused_moe_kernel", "invoke_fused_moe_kernel")
# `_prepare_expert_assignment`: with so few slots, vLLM does not sort them.
_SLOTS_PER_EXPERT = 4
_UNSORTED = "naive_block_assignment"
_IGNORE = "ignore_invalid_experts"


@dataclass(frozen=True)
class VLLMMoeKernels(MoeKernels):
    """The fused-MoE kernels of a version of vLLM."""

    foreign_blocks: ClassVar[bool] = False  # `ignore_invalid_experts`

    engine: VLLM
    lifted: Lifted
    _functions: dict[Target, EngineFunctions] = field(default_factory=dict)

    def bind(
        self,
        problem: FusedMoe,
        gemm: Gemm,
        batch_size: int,
        config: Config,
        target: Target,
        *,
        zero_points: bool = False,
        compute: str | None = None,
    ) -> Binding:
        """Bind the kernel that the engine launches for `gemm` at `batch_size` tokens.

        `zero_points`: weights are asymmetric (AWQ). `compute`: the 16-bit type beside quantised
        weights, "bf16" (the default) or "fp16".

        Raises UnsupportedKernel if the engine runs a compiled kernel, and for a parameter, a config
        key or a dtype that either its kernel or this function does not support.
        """
        if batch_size < 1:
            raise BadProblem(f"the batch size must be at least 1, not {batch_size}")
        self._check(config, target)
        launch = self._launch(
            _Layer(problem, gemm, batch_size, compute or _compute(problem), target),
            config,
            self._functions.setdefault(target, EngineFunctions(self.engine, SOURCE, target)),
            zero_points=zero_points,
        )
        parameters = self.lifted.parameters(launch.kernel)
        constants = {parameter.name for parameter in parameters if parameter.constexpr}
        known = {
            name: argument_of(name, value, constant=name in constants)
            for name, value in launch.arguments.items()
        }
        known["EM"] = Integer(-(-launch.arguments["EM"] // 16) * 16)
        options = {**triton_defaults(target.platform), **launch.options}
        return bind(self.lifted.origin, launch.kernel, parameters, known, options)

    def _launch(
        self, layer: _Layer, config: Config, functions: EngineFunctions, *, zero_points: bool
    ) -> KernelLaunch:
        launcher = next((name for name in _LAUNCHERS if functions.has(name)), _LAUNCHERS[0])
        sorted_ids, expert_ids, used = self._assignment(layer, config, functions)
        arguments = {
            **layer.tensors(zero_points),
            "sorted_token_ids": sorted_ids,
            "expert_ids": expert_ids,
            "num_tokens_post_padded": used,
            "config": dict(config),
            **layer.settings(),
        }
        launches = functions.launches(launcher, arguments)
        if not launches:
            raise UnsupportedKernel(
                f"{self.lifted.origin} runs a compiled kernel for {layer.problem.spec()} at "
                f"M={layer.batch_size}"
            )
        return launches[0]

    def _assignment(
        self, layer: _Layer, config: Config, functions: EngineFunctions
    ) -> tuple[TensorSpec | None, TensorSpec, TensorSpec]:
        """Return the sorted slots, the expert of each block, and the number of slots in use."""
        ids = TensorSpec("", (layer.batch_size, layer.problem.top_k), "i32")
        names = {parameter.name for parameter in self.lifted.parameters(DENSE)}
        experts = layer.problem.all_routed
        few = layer.problem.ep == 1 and ids.numel() * _SLOTS_PER_EXPERT <= experts
        if few and _UNSORTED in names and not layer.problem.grouped:
            return None, TensorSpec("", (ids.numel(),), "i32"), TensorSpec("", (1,), "i32")
        found: tuple[TensorSpec, TensorSpec, TensorSpec] = functions.call(
            "moe_align_block_size",
            {
                "topk_ids": ids,
                "block_size": config["BLOCK_SIZE_M"],
                "num_experts": experts,
                **self._expert_map(layer.problem, functions),
            },
        )
        return found

    def _expert_map(self, problem: FusedMoe, functions: EngineFunctions) -> dict[str, object]:
        """Return the arguments of expert parallelism, which leave out slots of other ranks.

        Raises UnsupportedKernel for a release that sorts these slots too.
        """
        if problem.ep == 1:
            return {}
        if not functions.takes("moe_align_block_size", _IGNORE):
            raise UnsupportedKernel(
                f"{self.lifted.origin} is not tuned with expert parallelism: it sorts the tokens "
                "of other ranks' experts too, which is not measured here"
            )
        return {"expert_map": TensorSpec("", (problem.all_routed,), "i32"), _IGNORE: True}

    def _check(self, config: Config, target: Target) -> None:
        origin = self.lifted.origin
        names = {parameter.name for parameter in self.lifted.parameters(DENSE)}
        choices = {*REQUIRED_FIELDS, *({"SPLIT_K"} & names), *launch_options(target.platform)}
        for key in config:
            if key not in choices:
                near = did_you_mean(key, choices)
                raise UnsupportedKernel(f"{origin}: {DENSE} takes no config key {key!r}{near}")
        if missing := [name for name in REQUIRED_FIELDS if name not in config]:
            raise UnsupportedKernel(f"{origin}: {DENSE} needs {', '.join(missing)}")
        refuse_empty_tiles(f"{origin}: {DENSE}", config)


@dataclass(frozen=True)
class _Layer:
    """The arguments that vLLM passes to its launcher for a gemm."""

    problem: FusedMoe
    gemm: Gemm
    batch_size: int
    compute: str
    target: Target

    def tensors(self, zero_points: bool) -> dict[str, object]:
        """Return A (rows, k), B (E, n, k), C (M, top_k, n), the scales and the router's weights."""
        problem, slots = self.problem, self.batch_size * self.problem.top_k
        n, k = problem.gemm_shape(self.gemm)
        rows = self.batch_size if self.gemm is Gemm.UP else slots
        packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
        a, b = self._types
        zero: TensorSpec | None = None
        if zero_points and problem.block_shape:
            zero = _tensor((problem.E, n // packed, -(-k // problem.block_shape[1])), "u8")
        return {
            "A": _tensor((rows, k), a),
            "B": _tensor((problem.E, n, k // packed), b),
            "C": _tensor((self.batch_size, problem.top_k, n), self.compute),
            "A_scale": self._activation_scale(rows, k),
            "B_scale": self._weight_scale(n, k),
            "B_zp": zero,
            "B_bias": None,
            "topk_weights": _tensor((self.batch_size, problem.top_k), "fp32"),
        }

    def settings(self) -> dict[str, object]:
        problem = self.problem
        return {
            "mul_routed_weight": self.gemm is Gemm.DOWN,
            "top_k": problem.top_k if self.gemm is Gemm.UP else 1,
            "compute_type": TritonType(self.compute),
            "use_fp8_w8a8": problem.dtype is Dtype.FP8_W8A8,
            "use_int8_w8a8": problem.dtype is Dtype.INT8_W8A8,
            "use_int8_w8a16": problem.dtype is Dtype.INT8_W8A16,
            "use_int4_w4a16": problem.dtype is Dtype.INT4_W4A16,
            "per_channel_quant": problem.per_channel_quant,
            "block_shape": list(problem.block_shape) if problem.block_shape else None,
        }

    @property
    def _types(self) -> tuple[str, str]:
        if self.problem.grouped:
            return self.compute, "u8"
        if self.problem.dtype is Dtype.INT8_W8A16:
            return self.compute, "i8"
        if self.problem.dtype is Dtype.INT8_W8A8:
            return "i8", "i8"
        if self.problem.dtype is Dtype.FP8_W8A8:
            fp8 = architecture(self.target).require_fp8()
            return fp8, fp8
        return self.compute, self.compute

    def _activation_scale(self, rows: int, k: int) -> TensorSpec | None:
        problem = self.problem
        if problem.dtype not in (Dtype.FP8_W8A8, Dtype.INT8_W8A8):
            return None
        if problem.block_shape:
            return _tensor((rows, -(-k // problem.block_shape[1])), "fp32")
        return _tensor((rows, 1) if problem.per_channel_quant else (1,), "fp32")

    def _weight_scale(self, n: int, k: int) -> TensorSpec | None:
        problem = self.problem
        if problem.dtype.weight_bits == 16:
            return None
        if problem.block_shape:
            block_n, block_k = problem.block_shape
            dtype = self.compute if problem.grouped else "fp32"
            return _tensor((problem.E, -(-n // (block_n or 1)), -(-k // block_k)), dtype)
        if problem.dtype is Dtype.INT8_W8A16:
            return _tensor((problem.E, n), "fp32")
        return _tensor((problem.E, n, 1) if problem.per_channel_quant else (problem.E,), "fp32")


def lift_fused_moe(engine: VLLM, platform: str = CUDA) -> VLLMMoeKernels:
    """Lift the kernels of an engine on disk for a platform, "cuda" or "hip".

    Raises UnsupportedKernel; see `lift`.
    """
    origin = f"{engine.name} {engine.version}"
    lifted = lift(engine.root / SOURCE, (DENSE, GROUPED), engine.root, origin, platform)
    return VLLMMoeKernels(engine, lifted)


def _compute(problem: FusedMoe) -> str:
    return "fp16" if problem.dtype is Dtype.FLOAT16 else "bf16"


def _tensor(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec("", shape, dtype)
