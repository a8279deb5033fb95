"""Read the fields of a config.json that describe experts, under models' different names."""

from __future__ import annotations

from tuner.models.fields import Json, count, size

# The first name that is present counts: if a model has two of them, the earlier is for routed
# experts and the later for dense layers.
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
EXPERTS_WIDTH = ("moe_intermediate_size", "expert_hidden_dim", "expert_ffn_hidden_size")
INTERMEDIATE = (*EXPERTS_WIDTH, "intermediate_size", "ffn_hidden_size")
HIDDEN = ("moe_latent_size", "routed_expert_hidden_size", "hidden_size", "d_model")
TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
    *("moe_topk", "moe_top_k", "moe_k", "top_k_experts"),
)
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_WIDTH_OF_EACH = ("moe_shared_expert_intermediate_size",)  # bailing_moe.py and nemotron_h.py
_WIDTH_OF_ALL = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
    "share_expert_dims",
)
_SHARED_BY_DESIGN = {"Llama4ForConditionalGeneration": 1, "Llama4ForCausalLM": 1}


def has_experts(fields: Json) -> bool:
    """Say whether the model has several experts: of one, engines make a dense MLP (jamba.py,
    hunyuan.py, bailing_moe_v3.py). Raises MalformedCheckpoint.
    """
    return (count(fields, EXPERTS) or 0) > 1


def shared_experts(fields: Json, architecture: str) -> tuple[int, int]:
    """Return (number of shared experts, columns of all of them together).

    Raises MalformedCheckpoint.
    """
    shared, width = count(fields, _SHARED), count(fields, _WIDTH_OF_ALL)
    each = count(fields, _WIDTH_OF_EACH)
    if shared is None:
        shared = 1 if width or each else _SHARED_BY_DESIGN.get(architecture, 0)
    if 0 in (shared, width, each):
        return 0, 0
    return shared, width or shared * (each or size(fields, INTERMEDIATE) or 0)
