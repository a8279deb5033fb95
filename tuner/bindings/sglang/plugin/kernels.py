"""List the parameters of sglang's attention kernels, in releases 0.5.12 to 0.5.23.

A parameter either tells which problem a launch works on (`tensors`, `values`), or must have its
default value for a tuned configuration to fit (`plain`), or does not matter (`neutral`). The plugin
leaves a kernel with any other parameter alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.families.attention.problem import AttentionPart

PLUGIN = "tuner_attention"  # its entry point
# The package of the kernels' modules since 0.5.16, and the package before.
PACKAGES = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")
PAGED = "page_size"  # a parameter of launchers since 0.5.16
# The launchers, by module. Arguments that no kernel gets are noted of its launcher: the longest
# sequence, on which the grid depends, and all of decode's shape.
LAUNCHERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "extend_attention": ("extend_attention_fwd", ("max_len_extend",)),
    "prefill_attention": ("context_attention_fwd", ("max_input_len",)),
    "decode_attention": (
        "decode_attention_fwd",
        ("q", "k_buffer", "v_buffer", "logit_cap", "sinks", PAGED),
    ),
}
# The constants that may be chosen. A release's kernel may lack some.
CHOICES: Mapping[AttentionPart, tuple[str, ...]] = {
    AttentionPart.EXTEND: ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    AttentionPart.PREFILL: ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    # With HAS_MLA the kernel takes values out of the keys; without, it loads them separately.
    AttentionPart.DECODE: ("BLOCK_N", "BLOCK_H", "HAS_MLA", "num_warps", "num_stages"),
    AttentionPart.REDUCE: ("num_warps",),
}
OPTIONS = ("num_warps", "num_stages")  # Triton's, not the kernel's
FLAGS = ("HAS_MLA",)  # the kernel takes a bool; a config holds 0 or 1
# Constants that must stay equal to another constant if the engine gives both the same value.
FOLLOWERS = {"BLOCK_N": "BLOCK_N_PREFIX"}


@dataclass(frozen=True)
class KernelSignature:
    """A kernel and its parameters."""

    part: AttentionPart
    module: str
    name: str
    tensors: tuple[str, ...]  # all have the problem's element type
    values: tuple[str, ...]  # they tell which problem it is
    plain: Mapping[str, frozenset[object]]  # with the values that a tuned launch may have
    neutral: frozenset[str]

    def unfit(self, names: Sequence[str]) -> str:
        """Return why a kernel with these parameters is not this kernel; empty if it is."""
        known = {*self.tensors, *self.values, *self.plain, *self.neutral}
        if unknown := [name for name in names if name not in known]:
            return f"{self.name} takes {', '.join(unknown)}, which this version does not know"
        needed = [*self.tensors, *(v for v in self.values if v not in _SINCE_LATER)]
        if lacking := [name for name in needed if name not in names]:
            return f"{self.name} does not take {', '.join(lacking)}"
        return ""


_SINCE_LATER = ("PAGE_SIZE", "BLOCK_N_PREFIX")  # not in 0.5.12
_NEVER = frozenset({False})
_NO_SCORE: Mapping[str, frozenset[object]] = {
    "xai_temperature_len": frozenset({-1, 0}),
    "SCORE_MOD": frozenset({None}),
}


# The cache's pages and strides, and the inputs of a SCORE_MOD.
_CACHE = (
    frozenset({"kv_indptr", "kv_indices", "Aux0", "aux0_stride_t", "aux0_stride_h", "aux0_len"})
    | {"stride_buf_kbs", "stride_buf_kh", "stride_buf_vbs", "stride_buf_vh"}
    | {"stride_buf_kpage", "stride_buf_ktok", "stride_buf_vpage", "stride_buf_vtok"}
)
_TILES = frozenset({"BLOCK_DMODEL", "BLOCK_DPE", "BLOCK_DV"})  # follow from the head's columns
_SPLITS = frozenset({"num_kv_splits", "MIN_BLOCK_KV", "USE_PDL"})
_MIDDLE = frozenset({"stride_mid_ob", "stride_mid_oh", "stride_mid_os"})
_QUERIES = frozenset({"stride_qbs", "stride_qh"})
_KEYS = frozenset({"stride_kbs", "stride_kh", "stride_vbs", "stride_vh"})
_OUTPUTS = frozenset({"stride_obs", "stride_oh"})

EXTEND = KernelSignature(
    AttentionPart.EXTEND,
    "extend_attention",
    "_fwd_kernel",
    tensors=("Q_Extend", "K_Extend", "V_Extend", "K_Buffer", "V_Buffer"),
    values=(
        *("kv_group_num", "Lq", "Lv", "SLIDING_WINDOW_SIZE", "logit_cap", "HAS_SINK"),
        *("PAGE_SIZE", "BLOCK_M", "BLOCK_N", "BLOCK_N_PREFIX"),
    ),
    plain={
        **_NO_SCORE,
        "IS_CAUSAL": frozenset({True}),
        **dict.fromkeys(
            (
                *("USE_CUSTOM_MASK", "STORE_LSE", "SKIP_PREFIX", "SKIP_EXTEND"),
                *("STORE_TRANSPOSE", "USE_COMPACT_TILE_GRID", "USE_EXP2", "USE_FP8_PREFIX"),
                *("USE_FP8_EXTEND", "IS_GFX1250", "IDENTITY_KV_INDICES"),
            ),
            _NEVER,
        ),
    },
    neutral=_CACHE
    | _TILES
    | {"O_Extend", "LSE_Extend", "qo_indptr", "mask_ptr", "mask_indptr", "sink_ptr"}
    | {"window_kv_offset_ptr", "sm_scale", "k_scale", "v_scale", "FP8_MAX"}
    | {"compact_batch_size", "SKIP_PREFIX_CUSTOM_MASK"}
    | {"stride_lse_bs", "stride_lse_h"}
    | _QUERIES
    | _KEYS
    | _OUTPUTS,
)
PREFILL = KernelSignature(
    AttentionPart.PREFILL,
    "prefill_attention",
    "_fwd_kernel",
    tensors=("Q", "K", "V"),
    values=("kv_group_num", "Lk", "BLOCK_M", "BLOCK_N"),
    plain={"IS_CAUSAL": frozenset({False})},  # an image's tokens all see each other
    neutral=frozenset({"sm_scale", "B_Start_Loc", "B_Seqlen", "Out", "BLOCK_DMODEL"})
    | _QUERIES
    | _KEYS
    | _OUTPUTS,
)
_STAGE_1_PLAIN: Mapping[str, frozenset[object]] = {
    **_NO_SCORE,
    **dict.fromkeys(("USE_FORCED", "IS_GFX1250"), _NEVER),
}
_STAGE_1_NEUTRAL = (
    _CACHE
    | _TILES
    | _SPLITS
    | _MIDDLE
    | {"sm_scale_withk", "Att_Out", "Att_Lse", "BLOCK_N", "uneven_batch", "forced_kv_splits"}
    | {"ROTATE_BATCH"}  # the order of the blocks
    | _QUERIES
)
GROUPED = KernelSignature(
    AttentionPart.DECODE,
    "decode_attention",
    "_fwd_grouped_kernel_stage1",
    tensors=("Q", "K_Buffer", "V_Buffer"),
    values=(
        *("kv_group_num", "q_head_num", "Lk", "Lv", "logit_cap"),
        *("PAGE_SIZE", "HAS_MLA", "BLOCK_H"),
    ),
    plain=_STAGE_1_PLAIN,
    neutral=_STAGE_1_NEUTRAL,
)
UNGROUPED = KernelSignature(
    AttentionPart.DECODE,
    "decode_attention",
    "_fwd_kernel_stage1",
    tensors=("Q", "K_Buffer", "V_Buffer"),
    values=("kv_group_num", "Lk", "Lv", "logit_cap", "PAGE_SIZE"),
    plain=_STAGE_1_PLAIN,
    neutral=_STAGE_1_NEUTRAL,
)
REDUCE = KernelSignature(
    AttentionPart.REDUCE,
    "decode_attention",
    "_fwd_kernel_stage2",
    tensors=("O",),
    values=("MAX_KV_SPLITS", "Lv", "HAS_SINK"),
    plain={"FORCED_KV_SPLITS": frozenset({0})},
    neutral=_SPLITS
    | _MIDDLE
    | {"Mid_O", "Mid_O_1", "v_scale", "kv_indptr", "sink_ptr", "BLOCK_DV"}
    | _OUTPUTS,
)
KERNELS = (EXTEND, PREFILL, GROUPED, UNGROUPED, REDUCE)
