"""Decide whether sglang appends the shared experts to the routed experts.

If it does, the layer has more experts and every token goes to them, which is a different problem
with a different file name. The rules come from the model classes of releases 0.4.4 to 0.5.23. If
two examined releases differ, the change is attributed to the newer release. sglang's tuning script
differs for some models (it adds one expert for Llama 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.devices.target import HIP
from tuner.engines.engine import Release
from tuner.errors import BadProblem
from tuner.families.fused_moe.engine import Fusion, FusionCase
from tuner.models.serving import Note
from tuner.problems.dtypes import Dtype

NEWEST = "0.5.23"  # the newest release whose rules were read; the default version
OLDEST_ARCH = 80
_PACKED = "of compressed-tensors int4 checkpoints, which keep them unquantised"


def shared_expert_fusion(asked: FusionCase) -> Fusion:
    """Decide as that version of sglang does by default on that GPU, unless `force` overrides it.

    Raises BadProblem if fusion is forced although there are no shared experts, or their width
    differs from the routed experts' width.
    """
    model = asked.model
    if not model.n_shared_experts:
        if asked.force:
            raise BadProblem(f"{model.name} has no shared experts to fuse")
        return Fusion(0, 0, f"{model.name} has no shared experts to fuse")
    version = asked.engine_version or NEWEST
    case = replace(asked, engine_version=version, dtype=asked.dtype or model.dtype)
    if asked.force is False:
        return Fusion(0, 0, f"E={model.E // case.ep} without the shared experts, as asked")
    if asked.force:
        return _forced(case)
    against = _reason_not_fused(case)
    if against:
        return Fusion(
            0, 0, f"E={model.E // case.ep}: sglang {version} does not fuse shared experts {against}"
        )
    added = _added(case)
    return Fusion(
        added,
        model.n_shared_experts,
        Note(
            f"E={model.E // case.ep}+{added}: sglang {version} fuses the shared experts of "
            f"{model.architecture} on {case.target.name} ",
            cli="(override with --no-fuse-shared)",
            api="(override with fuse_shared=false)",
        ),
    )


def fuses_in_some_release(architecture: str) -> bool:
    return architecture in _RULES


def _forced(case: FusionCase) -> Fusion:
    model = case.model
    if model.shared_intermediate != model.n_shared_experts * model.intermediate:
        raise BadProblem(
            f"the shared experts of {model.name} are {model.shared_intermediate} wide, not "
            f"{model.n_shared_experts} x {model.intermediate}: no engine can fuse them"
        )
    added = _added(case)
    return Fusion(added, model.n_shared_experts, f"E={model.E // case.ep}+{added}, as asked")


def _added(case: FusionCase) -> int:
    # Before 0.4.7 each rank held a copy per rank, and a token went to a single copy.
    return case.tp if case.release < (0, 4, 7) else case.model.n_shared_experts


def _reason_not_fused(case: FusionCase) -> str | None:
    """Return why this model's shared experts are not fused, as a clause; None if they are."""
    name = case.model.architecture
    if name not in _RULES:
        return f"of {name}"
    since, rule = _RULES[name]
    return f"of {name} before {'.'.join(map(str, since))}" if case.release < since else rule(case)


def _deepseek_v3(case: FusionCase) -> str | None:
    """Return the reason for DeepSeek V3 and R1. Kimi K2 has the same class but other sizes."""
    if case.release < (0, 4, 6):
        return "by default before 0.4.6"
    if case.model.E != 256 or case.model.n_shared_experts != 1:
        return f"of a model with {case.model.E} routed experts, only of DeepSeek V3's 256"
    if case.release < (0, 4, 7) and not case.target.is_sm_or_later(90):
        return f"on {case.target.name}, before 0.4.7 only on sm_90 and later"
    packed = case.model.quantization.startswith("compressed-tensors")
    if case.release >= (0, 5, 16) and packed and case.dtype is Dtype.INT4_W4A16:
        return _PACKED
    return _common_or_amd(case, (0, 5, 5, 3))


def _deepseek_v32(case: FusionCase) -> str | None:
    # Up to 0.5.11 the engine loaded it under DeepSeek V3's name, so V3's rule applied.
    if case.release < (0, 5, 12):
        return _deepseek_v3(case)
    return "of DeepseekV32ForCausalLM since 0.5.12"


def _glm4_moe(case: FusionCase) -> str | None:
    if case.release < (0, 5, 1) and case.model.E != 128:
        return f"of a GLM with {case.model.E} routed experts before 0.5.1"
    if (0, 5, 4, 1) <= case.release < (0, 5, 6):
        return "of GLM-4.5 from 0.5.4.post1 to 0.5.5"
    return _common_or_amd(case, (0, 5, 10))


def _qwen3_next(case: FusionCase) -> str | None:
    if case.release < (0, 5, 14):
        return "of Qwen3-Next before 0.5.14"
    if case.model.shared_intermediate != case.model.intermediate:
        return "of another width than the routed experts"
    if case.all_to_all not in ("", "nixl"):
        return f"with --moe-a2a-backend {case.all_to_all}"
    if case.target.platform == HIP:
        return f"on {case.target.name} without SGLANG_USE_AITER=1, with which AITER runs them"
    return None


def _minimax_m3(case: FusionCase) -> str | None:
    if case.target.platform == HIP and case.release >= (0, 5, 21):
        if not case.target.is_gfx(9, 5):
            return f"on {case.target.name}, of AMD's cards only on gfx950"
        return "under expert parallelism" if case.ep > 1 else None
    return _common(case)


def _bailing_v3(case: FusionCase) -> str | None:
    """Return the reason for Ling 3. Expert parallelism is no reason."""
    if (
        case.model.n_shared_experts != 1
        or case.model.shared_intermediate != case.model.intermediate
    ):
        return "of another width than the routed experts, or several of them"
    if case.model.quantization.startswith("compressed-tensors") and case.dtype is Dtype.INT4_W4A16:
        return _PACKED
    return _common_or_amd(replace(case, ep=1), (0, 5, 23))


def _common_or_amd(case: FusionCase, since: Release) -> str | None:
    """Return the reason for classes that fuse from a HIP capability of (9, 4) on, even under expert
    parallelism.
    """
    if case.all_to_all:
        return f"with --moe-a2a-backend {case.all_to_all}"
    if case.target.platform != HIP or case.release < since:
        return _common(case)
    old = not case.target.is_gfx_or_later(9, 4)
    return f"on {case.target.name}, of AMD's cards only on gfx942 and later" if old else None


def _common(case: FusionCase) -> str | None:
    if case.ep > 1:
        return "under expert parallelism"
    if not case.target.is_sm_or_later(OLDEST_ARCH):
        return f"on {case.target.name}, only on sm_{OLDEST_ARCH} and later"
    return None


_ANY: Release = ()
# The release from which a class is fused at all, and the rule from then on.
_RULES: dict[str, tuple[Release, Callable[[FusionCase], str | None]]] = {
    "BailingMoeV3ForCausalLM": ((0, 5, 23), _bailing_v3),
    "DeepseekV3ForCausalLM": (_ANY, _deepseek_v3),
    "DeepseekV32ForCausalLM": (_ANY, _deepseek_v32),
    "GlmMoeDsaForCausalLM": ((0, 5, 9), _deepseek_v3),
    "Glm4MoeForCausalLM": (_ANY, _glm4_moe),
    "Glm4MoeLiteForCausalLM": ((0, 5, 8), _common),
    "Glm5NextForConditionalGeneration": ((0, 5, 23), _common),
    "Glm4vMoeForConditionalGeneration": ((0, 5, 7), _common),
    "MiniMaxM3SparseForConditionalGeneration": ((0, 5, 16), _minimax_m3),
    "MiniMaxM3SparseForCausalLM": ((0, 5, 16), _minimax_m3),
    "Qwen3NextForCausalLM": (_ANY, _qwen3_next),
}
