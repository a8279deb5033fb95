"""Bind sglang's fused-MoE kernels the way its `invoke_fused_moe_kernel` launches them.

Source of every value: `invoke_fused_moe_kernel` and `_fused_moe_kernel_sequence` in sglang 0.4.4 to
0.5.23 on CUDA and HIP, for one rank without LoRA. SGLANG_MOE_PADDING, which AMD's images may set,
is assumed to be off. It makes rows of weights longer, by a multiple of 16 elements, and leaves K as
it is, so machine code stays the same.

A compiled variant serves many batch sizes. Only EM (slots after padding) and num_valid_tokens (M *
top_k) change with the batch size, and Triton specialises them only on "is 1" and "is a multiple of
16". EM is rounded up to a multiple of 16, at most one empty block more than the engine launches, so
it never causes another variant. num_valid_tokens keeps its true value, so all M with M * top_k
divisible by 16 share a variant, and all others share a second. (From sglang 0.5.23 on sm_90 and
later, GDC_EARLY splits the variants again at 512 rows.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tuner.devices.table import architecture
from tuner.devices.target import CUDA, Target
from tuner.engines.config_files import AMD_OPTIONS, launch_options
from tuner.engines.sglang.package import SGLang
from tuner.errors import BadProblem, UnsupportedKernel, did_you_mean
from tuner.families.fused_moe.engine import MoeKernels
from tuner.families.fused_moe.problem import FusedMoe, Gemm, padded_slots, sorted_slots, swaps_ab
from tuner.kernels.binding import (
    ABSENT,
    Argument,
    Binding,
    Constant,
    Descriptor,
    Integer,
    Pointer,
    TypeConstant,
    bind,
    refuse_empty_tiles,
)
from tuner.kernels.lift import Lifted, find_source, lift
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, triton_defaults

_LOCATIONS = (  # of the kernels, in versions since 0.4.4
    "kernels/ops/moe/fused_moe_triton_kernels.py",
    "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
    "srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
    "srt/layers/moe/fused_moe_triton/fused_moe.py",
)
_CHOOSERS = (
    "srt/layers/moe/moe_runner/triton_utils/fused_moe.py",
    "srt/layers/moe/fused_moe_triton/fused_moe.py",
)
_UP_TMA = re.compile(r"""(?<![\w.])config\.pop\(["']USE_TMA["']""")
GDC_EARLY_ROWS = 512


@dataclass(frozen=True)
class FusedMoeKernels(MoeKernels):
    """The fused-MoE kernels of an engine version."""

    foreign_blocks: ClassVar[bool] = True  # `moe_align_block_size` has a bucket for -1

    lifted: Lifted
    up_tma: bool = False  # whether the release reads USE_TMA of entries for the up gemm

    def bind(
        self,
        problem: FusedMoe,
        gemm: Gemm,
        batch_size: int,
        config: Config,
        target: Target,
        *,
        sorted_output: bool = False,
        zero_points: bool = False,
        compute: str | None = None,
    ) -> Binding:
        """Bind the kernel that the engine launches for `gemm` at `batch_size` tokens.

        `sorted_output`: this is the up gemm, and the down gemm uses TMA. `zero_points`: weights
        are asymmetric (AWQ).
        `compute`: the 16-bit type beside quantised weights, "bf16" (the default) or "fp16".

        Raises UnsupportedKernel for a parameter, a config key or a dtype that either the
        engine's kernel or this function does not support.
        """
        if gemm is Gemm.UP and not self.up_tma and self.has_tma(Gemm.DOWN):
            # The engine ignores the field; a release without TMA stops at it.
            config = Config({name: v for name, v in config.items() if name != "USE_TMA"})
        launch = MoeLaunch(
            problem, gemm, batch_size, config, target, sorted_output, compute or compute_of(problem)
        )
        function = kernel_name(problem)
        parameters = self.lifted.parameters(function)
        names = {parameter.name for parameter in parameters}
        self._check(launch, function, names)
        allowed = launch_options(target.platform)
        known = {
            **arguments_of(launch, zero_points=zero_points),
            **{k: Constant(v) for k, v in config.items() if k not in allowed},
        }
        options: dict[str, int | bool] = {
            **triton_defaults(target.platform),
            **{name: value for name, value in config.items() if name in allowed},
        }
        if "USE_GDC" in names and architecture(target).has_pdl:  # is_arch_support_pdl()
            known |= {
                "USE_GDC": Constant(True),
                "GDC_EARLY": Constant(launch.a_rows <= GDC_EARLY_ROWS),
            }
            options["launch_pdl"] = True
        return bind(self.lifted.origin, function, parameters, known, options)

    def has_tma(self, gemm: Gemm) -> bool:
        """Say whether this release reads a gemm's tensors through TMA: down's since 0.5.12."""
        if gemm is Gemm.UP:
            return self.up_tma
        return any(parameter.name == "a_desc" for parameter in self.lifted.parameters(DENSE))

    def _check(self, launch: MoeLaunch, function: str, names: set[str]) -> None:
        origin = self.lifted.origin
        tiles = {name for name in names if name.startswith(("BLOCK_SIZE_", "GROUP_SIZE_"))}
        options = launch_options(launch.target.platform)
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
        refuse_empty_tiles(f"{origin}: {function}", launch.config)
        if launch.sorted_output and "c_sorted" not in names:
            raise UnsupportedKernel(f"{origin}: {function} cannot write its output in slot order")
        problem = launch.problem
        fp8_channel = problem.per_channel_quant and problem.dtype is Dtype.FP8_W8A8
        if fp8_channel and "per_channel_quant" not in names:
            raise UnsupportedKernel(f"{origin}: {function} has no per-channel fp8")


def lift_fused_moe(engine: SGLang, platform: str = CUDA) -> FusedMoeKernels:
    """Lift the kernels of an engine on disk for a platform, "cuda" or "hip".

    Raises UnsupportedKernel; see `lift`.
    """
    origin = f"{engine.name} {engine.version}"
    source = find_source(engine.root, origin, DENSE, _LOCATIONS)
    lifted = lift(source, (DENSE, GROUPED), engine.root, origin, platform)
    return FusedMoeKernels(lifted, reads_up_tma(engine))


def reads_up_tma(engine: SGLang) -> bool:
    """Say whether a release takes USE_TMA out of the up gemm's entry (0.5.23), and not only of
    down's.

    Its chooser takes it out, which lies beside the kernel or in a folder above.
    """
    choosers = (engine.root / place for place in _CHOOSERS)
    return any(
        _UP_TMA.search(path.read_text(encoding="utf-8")) for path in choosers if path.is_file()
    )


DENSE = "fused_moe_kernel"
GROUPED = "fused_moe_kernel_gptq_awq"


def kernel_name(problem: FusedMoe) -> str:
    """Return the kernel's name; quantisation groups along k need a different kernel."""
    return GROUPED if problem.grouped else DENSE


def takes_tma(problem: FusedMoe, gemm: Gemm) -> bool:
    """Say whether a gemm is correct when it reads through TMA: up reads B so, down also A, sorted.

    For a sorted A, fused_moe_kernel looks up a token's scale by its slot only for quantisation
    blocks. The kernel's `assert use_fp8_w8a8` does not decide: Triton checks it only in debug mode,
    and sglang ships 16-bit files with USE_TMA.
    """
    dense = kernel_name(problem) == DENSE
    return dense and (gemm is Gemm.UP or not problem.per_channel_quant)


@dataclass(frozen=True)
class MoeLaunch:
    """A launch, with the sizes from which its arguments follow."""

    problem: FusedMoe
    gemm: Gemm
    batch_size: int
    config: Config
    target: Target
    sorted_output: bool
    compute: str

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise BadProblem(f"the batch size must be at least 1, not {self.batch_size}")
        if self.tma and not takes_tma(self.problem, self.gemm):
            raise UnsupportedKernel(
                f"USE_TMA does not go with {self.problem.spec()}: its kernel would read A's rows "
                f"in sorted order but their scales by token, or has no TMA at all"
            )

    @property
    def tma(self) -> bool:
        return bool(self.config.get("USE_TMA", 0))

    @property
    def sorted_a(self) -> bool:
        """Say whether A is read through TMA, and so in sorted order: in the down gemm alone."""
        return self.tma and self.gemm is Gemm.DOWN

    @property
    def valid_slots(self) -> int:
        return self.batch_size * self.problem.top_k

    @property
    def a_rows(self) -> int:
        """Return the number of rows of A. With TMA, down reads all slots in sorted order, including
        the padding.
        """
        if self.gemm is Gemm.UP:
            return self.batch_size
        if self.tma:
            return sorted_slots(self.valid_slots, self.problem.E, self.config["BLOCK_SIZE_M"])
        return self.valid_slots


def compute_of(problem: FusedMoe) -> str:
    """Return the 16-bit type beside quantised weights, as Triton names it."""
    return "fp16" if problem.dtype is Dtype.FLOAT16 else "bf16"


def arguments_of(launch: MoeLaunch, *, zero_points: bool) -> dict[str, Argument]:
    """Return the arguments of a launch by parameter; see `FusedMoeKernels.bind` for the flags."""
    if kernel_name(launch.problem) == GROUPED:
        return {**_shared(launch), **_grouped(launch, zero_points)}
    return {**_shared(launch), **_dense(launch)}


def _shared(launch: MoeLaunch) -> dict[str, Argument]:
    """Return the parameters of both kernels."""
    problem, gemm, config = launch.problem, launch.gemm, launch.config
    n, _ = problem.gemm_shape(gemm)
    em = padded_slots(launch.valid_slots, problem.E, config["BLOCK_SIZE_M"])
    return {
        "c_ptr": Pointer(launch.compute),
        "topk_weights_ptr": Pointer("fp32"),
        "sorted_token_ids_ptr": Pointer("i32"),
        "expert_ids_ptr": Pointer("i32"),
        "num_tokens_post_padded_ptr": Pointer("i32"),
        "EM": Integer(em),
        "num_valid_tokens": Integer(launch.valid_slots),
        "stride_cm": Integer(n),
        "stride_cn": Integer(1),
        "MUL_ROUTED_WEIGHT": Constant(gemm is Gemm.DOWN),
        "top_k": Constant(problem.top_k if gemm is Gemm.UP else 1),
        "compute_type": TypeConstant(launch.compute),
        "use_int8_w8a16": Constant(problem.dtype is Dtype.INT8_W8A16),
        "filter_expert": Constant(problem.ep > 1),
    }


def _dense(launch: MoeLaunch) -> dict[str, Argument]:
    """Return the parameters of `fused_moe_kernel`. A (rows, K), B (E, n, K), C (slots, n)."""
    problem, config = launch.problem, launch.config
    n, k = problem.gemm_shape(launch.gemm)
    a, b = _operands(launch)
    blocks = (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config["BLOCK_SIZE_K"])
    group_n, group_k = problem.block_shape or (0, 0)
    return {
        "a_ptr": Pointer(a),
        "b_ptr": Pointer(b),
        "a_desc": Descriptor(a, (blocks[0], blocks[2])) if launch.sorted_a else ABSENT,
        "b_desc": Descriptor(b, (1, blocks[1], blocks[2])) if launch.tma else ABSENT,
        "bias_ptr": ABSENT,
        "add_mask_ptr": ABSENT,
        "N": Integer(n),
        "K": Integer(k),
        "stride_am": Integer(k),
        "stride_ak": Integer(1),
        "stride_be": Integer(n * k),
        "stride_bk": Integer(1),
        "stride_bn": Integer(k),
        "stride_bias_e": Integer(0),
        "stride_bias_n": Integer(0),
        **_scales(problem, n, k),
        "group_n": Constant(group_n),
        "group_k": Constant(group_k),
        "use_fp8_w8a8": Constant(problem.dtype is Dtype.FP8_W8A8),
        "use_int8_w8a8": Constant(problem.dtype is Dtype.INT8_W8A8),
        "per_channel_quant": Constant(problem.per_channel_quant),
        "even_Ks": Constant(k % config["BLOCK_SIZE_K"] == 0),
        "c_sorted": Constant(launch.sorted_output),
        "swap_ab": Constant(swaps_ab(config, problem.dtype, launch.target)),
        "FUSE_ADD_TO_OUTPUT": Constant(False),
        "MASK_OUTPUT": Constant(False),
        "FUSE_SUM_ALL_REDUCE": Constant(False),
        "LORA_PRESERVE_BASE": Constant(False),
        "ROUTER_TOPK": Constant(1 if launch.gemm is Gemm.UP else problem.top_k),
    }


def _operands(launch: MoeLaunch) -> tuple[str, str]:
    """Return Triton's types of A and B. Raises UnsupportedKernel for fp8 on a target without it."""
    match launch.problem.dtype:
        case Dtype.FP8_W8A8:
            fp8 = architecture(launch.target).require_fp8()
            return fp8, fp8
        case Dtype.INT8_W8A8:
            return "i8", "i8"
        case Dtype.INT8_W8A16:
            return launch.compute, "i8"
    return launch.compute, launch.compute


def _scales(problem: FusedMoe, n: int, k: int) -> dict[str, Argument]:
    """Return the scale tensors and their strides; a stride is 0 if the tensor lacks the dimension.

    Blocks: A (rows, ceil(K / k)), B (E, ceil(n / n'), ceil(K / k)). Channels: A (rows, 1), B (E, n,
    1). Tensor-wise: A (1,), B (E,). Weight-only int8: B (E, n).
    """
    weight_only = problem.dtype is Dtype.INT8_W8A16
    quantised = problem.dtype.weight_bits == 8
    scale: Argument = Pointer("fp32")
    strides = {"asm": 0, "ask": 0, "bse": 0, "bsk": 0, "bsn": 0}
    if weight_only:
        strides = {"asm": 0, "ask": 0, "bse": n, "bsk": 0, "bsn": 1}
    elif problem.block_shape:
        block_n, block_k = problem.block_shape
        rows, columns = -(-n // block_n), -(-k // block_k)
        strides = {"asm": columns, "ask": 1, "bse": rows * columns, "bsk": 1, "bsn": columns}
    elif problem.per_channel_quant:
        strides = {"asm": 1, "ask": 1, "bse": n, "bsk": 1, "bsn": 1}
    return {
        "a_scale_ptr": scale if quantised and not weight_only else ABSENT,
        "b_scale_ptr": scale if quantised else ABSENT,
        **{f"stride_{name}": Integer(value) for name, value in strides.items()},
    }


def _grouped(launch: MoeLaunch, zero_points: bool) -> dict[str, Argument]:
    """Return the parameters of `fused_moe_kernel_gptq_awq`.

    A (rows, K); B (E, n, K or K / 2) in bytes; scales (E, n, K / g); zero points, in bytes, (E, n,
    K / g), packed two to a byte along n for int4.
    """
    problem = launch.problem
    assert problem.block_shape is not None
    n, k = problem.gemm_shape(launch.gemm)
    group = problem.block_shape[1]
    groups = -(-k // group)
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    zp_strides = (n // packed * groups, 1, groups) if zero_points else (0, 0, 0)
    return {
        "a_ptr": Pointer(launch.compute),
        "b_ptr": Pointer("u8"),
        "b_scale_ptr": Pointer(launch.compute),
        "b_zp_ptr": Pointer("u8") if zero_points else ABSENT,
        "N": Constant(n),
        "K": Constant(k),
        "stride_am": Integer(k),
        "stride_ak": Integer(1),
        "stride_be": Integer(n * k // packed),
        "stride_bk": Integer(1),
        "stride_bn": Integer(k // packed),
        "stride_bse": Integer(n * groups),
        "stride_bsk": Integer(1),
        "stride_bsn": Integer(groups),
        "stride_bze": Integer(zp_strides[0]),
        "stride_bzk": Integer(zp_strides[1]),
        "stride_bzn": Integer(zp_strides[2]),
        "group_size": Constant(group),
        "has_zp": Constant(zero_points),
        "use_int4_w4a16": Constant(problem.dtype is Dtype.INT4_W4A16),
        # The engine tests B's last dimension, which is halved for int4.
        "even_Ks": Constant(k // packed % launch.config["BLOCK_SIZE_K"] == 0),
    }
