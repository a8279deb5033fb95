"""A row for each type and quantisation of each family and engine."""

from __future__ import annotations

from tuner.problems.points import Problem
from tuner.problems.registry import Selection, family_of

SGLANG = ("sglang==0.5.16", "sglang==0.5.23")
BOTH = (*SGLANG, "vllm==0.33.0")
MOE = "fused_moe:E=16,N=256,K=512,top_k=4"
GQA = "q_heads=8,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16"
LATENT = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
DELTA = "gated_delta:key_heads=2,value_heads=4,key_dim=128,value_dim=128"
SSD = "chunk_scan:heads=8,head_dim=64,groups=1,state_size=128,chunk_size=128"
ROWS = {
    f"{MOE},dtype=bfloat16": BOTH,
    f"{MOE},dtype=float16": BOTH,
    f"{MOE},dtype=fp8_w8a8": BOTH,
    f"{MOE},dtype=fp8_w8a8,per_channel_quant": BOTH,
    f"{MOE},dtype=fp8_w8a8,block_shape=128x128": BOTH,
    f"{MOE},dtype=int8_w8a8,per_channel_quant": SGLANG,
    f"{MOE},dtype=int8_w8a8,block_shape=128x128": SGLANG,
    f"{MOE},dtype=int8_w8a16": BOTH,
    f"{MOE},dtype=int8_w8a16,block_shape=0x128": SGLANG,
    f"{MOE},dtype=int4_w4a16,block_shape=0x128": SGLANG,
    f"{MOE},dtype=fp8_w8a8,block_shape=128x128,ep=4": BOTH,
    f"{MOE},dtype=bfloat16,shared_experts=1": SGLANG,
    "block_gemm:N=1536,K=2048,dtype=fp8_w8a8,block=128x128": SGLANG,
    "block_gemm:N=1536,K=2048,dtype=int8_w8a8,block=128x128": SGLANG,
    "channel_gemm:N=1536,K=2048,dtype=fp8_w8a8": SGLANG[1:],  # 0.5.16 reads no file for it
    f"extend_attention:{GQA}": SGLANG,
    f"extend_attention:{LATENT}": SGLANG,
    f"decode_attention:{GQA}": SGLANG,
    f"decode_attention:{LATENT}": SGLANG,
    f"extend_attention:{GQA}".replace("bfloat16", "float16"): SGLANG[1:],
    f"decode_attention:{GQA}".replace("bfloat16", "float16"): SGLANG[1:],
    "prefill_attention:q_heads=8,kv_heads=8,Lq=80,Lv=80,dtype=bfloat16": SGLANG,
    SSD: BOTH,
    f"{SSD},dtype=float16,state_dtype=float16": BOTH[1:],
    DELTA: SGLANG,
    f"{DELTA},dtype=float16": SGLANG[1:],
    f"{DELTA},chain=split": BOTH[2:],
}
CASES = [(text, engine) for text, engines in ROWS.items() for engine in engines]


def few_points(problem: Problem) -> Selection:
    """Two sizes of a problem, the smallest ones of an attention's usual points."""
    names = {option.name for option in family_of(problem).selecting}
    fields: dict[str, object] = {}
    if "batch_sizes" in names:
        fields["batch_sizes"] = [1, 64]
    elif "prompts" in names:
        fields["prompts"] = [{"sequences": n, "tokens": t} for n, t in ((1, 1000), (2, 512))]
    else:
        sizes = {"extend": (2, 128, 512), "decode": (4, 1, 1024), "prefill": (2, 256, 0)}
        kind = problem.spec().partition("_")[0]
        words = ("batch_size", "new_tokens", "cached_tokens")
        fields["workload"] = [{**dict(zip(words, sizes[kind], strict=True)), "weight": 1.0}]
    return family_of(problem).read_selection(problem, fields)
