"""Binds sglang's attention kernels as its own launchers launch them.

What is launched, with which arguments and constants, the engine's own code says (`launcher`);
here are only the inputs that its attention backend gives it, and which of the constants may be
changed. Neither lengths nor the batch size reach a kernel as numbers, so one compiled kernel
serves every point of a problem.

Source of the inputs: `TritonAttnBackend` of sglang 0.4.4 to 0.5.23 (forward_extend,
forward_decode, init_forward_metadata), one rank, a cache of 16-bit elements.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.engines import Engine
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.kernels.binding import (
    Argument,
    Binding,
    Constant,
    Float,
    Integer,
    Pointer,
    bind,
)
from tuner.kernels.launcher import Launch, Launcher, Tensor
from tuner.kernels.lift import Lifted, lift
from tuner.problems import Attention, Config, Dtype, Phase, Point, Stage

# What of a launch may be chosen; what the engine's kernel does not take is left out.
CHOICES: Mapping[Stage, tuple[str, ...]] = {
    Stage.EXTEND: ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    Stage.PREFILL: ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    Stage.DECODE: ("BLOCK_N", "BLOCK_H", "num_warps", "num_stages"),
    Stage.REDUCE: ("num_warps",),
}
OPTIONS = ("num_warps", "num_stages")
# Constants that follow another one wherever the engine gives both the same value.
FOLLOWERS = {"BLOCK_N": "BLOCK_N_PREFIX"}
LAUNCHERS = {
    Phase.EXTEND: ("extend_attention", "extend_attention_fwd"),
    Phase.PREFILL: ("prefill_attention", "context_attention_fwd"),
    Phase.DECODE: ("decode_attention", "decode_attention_fwd"),
}
KERNELS = {
    Phase.EXTEND: ("_fwd_kernel",),
    Phase.PREFILL: ("_fwd_kernel",),
    Phase.DECODE: ("_fwd_grouped_kernel_stage1", "_fwd_kernel_stage1", "_fwd_kernel_stage2"),
}
PDL_ARCH = 90  # is_arch_support_pdl(): major version 9 or later
ELEMENT = {Dtype.BFLOAT16: "bf16", Dtype.FLOAT16: "fp16"}


@dataclass(frozen=True)
class Indices:
    """Types of index tensors (i32 or i64), which changed from version to version."""

    qo_indptr: str
    kv_indices: str


@dataclass(frozen=True)
class AttentionKernels:
    """The attention kernels of one engine version, with its launchers."""

    engine: Engine
    origin: str  # e.g. "sglang 0.5.16"; for messages
    _launches: dict[tuple[Attention, Point, int], Launch] = field(default_factory=dict)
    _launchers: dict[tuple[Phase, int], Launcher] = field(default_factory=dict)

    def default_config(self, problem: Attention, point: Point, arch: int) -> Config:
        """The engine's own constants at a point. Raises UnsupportedKernel."""
        launch = self.launch(problem, point, arch)
        both = {**launch.arguments, **launch.options}
        return Config({name: both[name] for name in CHOICES[_stage(point)] if name in both})

    def bind(self, problem: Attention, point: Point, config: Config, arch: int) -> Binding:
        """The kernel and its arguments at a point, with a config's constants.

        Raises UnsupportedKernel for what the engine's kernel does not take.
        """
        launch = self.launch(problem, point, arch)
        lifted = self.lifted(problem.phase)
        parameters = lifted.parameters(launch.kernel)
        default = self.default_config(problem, point, arch)
        for key in config:
            if key not in default:
                near = did_you_mean(key, list(default))
                raise UnsupportedKernel(f"{self.origin}: {launch.kernel} has no {key!r}{near}")
        changed = {**default, **config}
        for leader, follower in FOLLOWERS.items():
            if leader in changed and launch.arguments.get(follower) == default[leader]:
                changed[follower] = changed[leader]
        known = {name: _argument(name, value) for name, value in launch.arguments.items()}
        known |= {name: Constant(v) for name, v in changed.items() if name not in OPTIONS}
        options = {**launch.options, **{n: v for n, v in changed.items() if n in OPTIONS}}
        return bind(self.origin, launch.kernel, parameters, known, options)

    def grid(self, problem: Attention, point: Point, config: Config, arch: int) -> tuple[int, ...]:
        """The blocks that the engine launches at a point, with a config's constants."""
        launch = self.launch(problem, point, arch)
        default = self.default_config(problem, point, arch)
        if _grid(launch.grid, problem, point, default) != launch.grid:
            raise UnsupportedKernel(f"{self.origin}: {launch.kernel} has an unknown grid")
        return _grid(launch.grid, problem, point, Config({**default, **config}))

    def launch(self, problem: Attention, point: Point, arch: int) -> Launch:
        """What the engine launches for a point's stage. Raises UnsupportedKernel."""
        key = problem, point, arch
        if key not in self._launches:
            for launch in self._run(problem, point, arch):
                stage = _stage_of(problem.phase, launch.kernel)
                at = Point(point.batch_size, stage, point.new_tokens, point.cached_tokens)
                self._launches[problem, at, arch] = launch
        if key not in self._launches:
            raise UnsupportedKernel(f"{self.origin} launches nothing for {point} of {problem}")
        return self._launches[key]

    def lifted(self, phase: Phase) -> Lifted:
        return self._lifted[phase]

    @property
    def hash(self) -> str:
        """The kernels' identity: sha256 over all that is lifted."""
        parts = [self._lifted[phase].hash for phase in Phase]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @cached_property
    def _lifted(self) -> dict[Phase, Lifted]:
        return {phase: self._lift(phase) for phase in Phase}

    def _lift(self, phase: Phase) -> Lifted:
        source = self.engine.kernel_source(LAUNCHERS[phase][0])
        return lift(source, KERNELS[phase], self.engine.root, self.origin)

    @cached_property
    def indices(self) -> Indices:
        """The whole numbers' types in the engine's attention backend."""
        backend = self.engine.root / "srt/layers/attention/triton_backend.py"
        try:
            text = backend.read_text(encoding="utf-8")
        except OSError:
            raise UnsupportedKernel(f"{self.origin} has no {backend.name}") from None
        return Indices(
            *(_index_type(self.origin, text, name) for name in ("qo_indptr", "kv_indices"))
        )

    def _run(self, problem: Attention, point: Point, arch: int) -> list[Launch]:
        family, function = LAUNCHERS[problem.phase]
        key = problem.phase, arch
        if key not in self._launchers:
            source = self.engine.kernel_source(family)
            self._launchers[key] = Launcher(source, self.engine.root, self.origin, arch)
        launcher = self._launchers[key]
        takes = launcher.parameters(function)
        return launcher.run(function, launcher_arguments(problem, point, arch, takes, self.indices))


def lift_attention(engine: Engine) -> AttentionKernels:
    """The attention kernels of an engine on disk. Raises UnsupportedKernel when they are used."""
    return AttentionKernels(engine, f"{engine.name} {engine.version}")


def launcher_arguments(
    problem: Attention, point: Point, arch: int, takes: tuple[str, ...], indices: Indices
) -> dict[str, Any]:
    """What the engine's attention backend gives its launcher, by the launcher's names."""
    scale = problem.Lq**-0.5
    if problem.phase is Phase.PREFILL:
        return {**prefill_tensors(problem, point), "max_input_len": point.new_tokens}
    common = {
        "k_scale": 1.0,
        "v_scale": 1.0,
        "sm_scale": scale,
        "logit_cap": problem.logit_cap,
        "sinks": Tensor("sinks", (problem.q_heads,), ELEMENT[problem.dtype])
        if problem.sinks
        else None,
        "page_size": problem.page_size,
    }
    if problem.phase is Phase.EXTEND:
        return {
            **common,
            **extend_tensors(problem, point, indices),
            "custom_mask": None,
            "is_causal": True,
            "mask_indptr": None,
            "max_len_extend": point.new_tokens,
            "sliding_window_size": problem.window or -1,
        }
    one_number = "max_kv_splits" not in takes  # sglang 0.4.4: the same for all sequences
    return {
        **common,
        **decode_tensors(problem, point, takes, indices),
        **({"num_kv_splits": problem.kv_splits} if one_number else {}),
        "max_kv_splits": problem.kv_splits,
        "has_mla": problem.shares_kv,
        "use_pdl": arch >= PDL_ARCH,
    }


def extend_tensors(problem: Attention, point: Point, indices: Indices) -> dict[str, Tensor]:
    """Queries, keys and values of the new tokens, and the cache, by the launcher's names."""
    rows = point.batch_size * point.new_tokens
    kind = ELEMENT[problem.dtype]
    heads, kv_heads = problem.q_heads, problem.kv_heads
    return {
        "q_extend": Tensor("q_extend", (rows, heads, problem.Lq), kind),
        "k_extend": Tensor("k_extend", (rows, kv_heads, problem.Lq), kind),
        "v_extend": Tensor("v_extend", (rows, kv_heads, problem.Lv), kind),
        "o_extend": Tensor("o_extend", (rows, heads, problem.Lv), kind),
        "qo_indptr": Tensor("qo_indptr", (point.batch_size + 1,), indices.qo_indptr),
        **_cache(problem, point, indices),
    }


def decode_tensors(
    problem: Attention, point: Point, takes: tuple[str, ...], indices: Indices
) -> dict[str, Tensor]:
    """One query a sequence, the cache, and the splits' results, by the launcher's names."""
    batch, heads, splits = point.batch_size, problem.q_heads, problem.kv_splits
    kind = ELEMENT[problem.dtype]
    # sglang 0.4.4 keeps a split's log-sum-exp behind its values.
    columns = problem.Lv + ("attn_lse" not in takes)
    return {
        "q": Tensor("q", (batch, heads, problem.Lq), kind),
        "o": Tensor("o", (batch, heads, problem.Lv), kind),
        "attn_logits": Tensor("attn_logits", (batch, heads, splits, columns), "fp32"),
        "attn_lse": Tensor("attn_lse", (batch, heads, splits), "fp32"),
        "num_kv_splits": Tensor("num_kv_splits", (batch,), "i32"),
        **_cache(problem, point, indices),
    }


def prefill_tensors(problem: Attention, point: Point) -> dict[str, Tensor]:
    """Queries, keys and values, by the launcher's names."""
    rows, kind = point.batch_size * point.new_tokens, ELEMENT[problem.dtype]
    return {
        "q": Tensor("q", (rows, problem.q_heads, problem.Lq), kind),
        "k": Tensor("k", (rows, problem.kv_heads, problem.Lq), kind),
        "v": Tensor("v", (rows, problem.kv_heads, problem.Lv), kind),
        "o": Tensor("o", (rows, problem.q_heads, problem.Lv), kind),
        "b_start_loc": Tensor("b_start_loc", (point.batch_size,), "i32"),
        "b_seq_len": Tensor("b_seq_len", (point.batch_size,), "i32"),
    }


def _cache(problem: Attention, point: Point, indices: Indices) -> dict[str, Tensor]:
    slots = point.batch_size * (point.cached_tokens + point.new_tokens)
    kind, kv_heads = ELEMENT[problem.dtype], problem.kv_heads
    row = kv_heads * problem.Lq
    views = (row, problem.Lq, 1) if problem.shares_kv else None
    return {
        "k_buffer": Tensor("k_buffer", (slots, kv_heads, problem.Lq), kind),
        "v_buffer": Tensor("v_buffer", (slots, kv_heads, problem.Lv), kind, views),
        "kv_indptr": Tensor("kv_indptr", (point.batch_size + 1,), "i32"),
        "kv_indices": Tensor("kv_indices", (slots,), indices.kv_indices),
    }


def _index_type(origin: str, text: str, name: str) -> str:
    """The type with which the backend allocates an index tensor (the last it names)."""
    found = re.search(rf"\b{name} = torch\.(?:zeros|empty)\((.*?)device=", text, re.DOTALL)
    bits = re.findall(r"torch\.int(32|64)", found[1]) if found else []
    if not bits:
        raise UnsupportedKernel(f"{origin} allocates {name} in an unknown way")
    return f"i{bits[-1]}"


def _stage(point: Point) -> Stage:
    assert isinstance(point.part, Stage), f"{point} is no attention's"
    return point.part


def _stage_of(phase: Phase, kernel: str) -> Stage:
    if phase is not Phase.DECODE:
        return Stage(phase.value)
    return Stage.REDUCE if kernel.endswith("stage2") else Stage.DECODE


def _grid(
    engine_grid: tuple[int, ...], problem: Attention, point: Point, config: Mapping[str, int]
) -> tuple[int, ...]:
    stage = _stage(point)
    if stage in (Stage.EXTEND, Stage.PREFILL):
        blocks = -(-point.new_tokens // config["BLOCK_M"])
        return point.batch_size, problem.q_heads, blocks
    if stage is Stage.DECODE and "BLOCK_H" in config:
        blocks = -(-problem.q_heads // min(config["BLOCK_H"], problem.group))
        return point.batch_size, blocks, problem.kv_splits
    return engine_grid


def _argument(name: str, value: object) -> Argument:
    if isinstance(value, Tensor):
        return Pointer(value.dtype, value.name)
    if value is None or isinstance(value, bool | str):
        return Constant(value)
    if isinstance(value, int):
        return Integer(value)
    if isinstance(value, float):
        return Float(value)
    raise UnsupportedKernel(f"{name} is a {type(value).__name__}, which cannot be bound")
