"""Run FlashAttention 3 of sgl_kernel, vLLM or its own package, over a cache in pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from tuner.backends.operands import AttentionOperands, Call, Unsupported, need, need_target

AUTOMATIC = 0  # splits: the library chooses their number


def attention(batch: Sequence[AttentionOperands]) -> list[Call]:
    first = batch[0]
    need_target("FlashAttention 3", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90")
    for package, make in _PACKAGES.items():
        module = _imported(package)
        if module is not None:
            return [partial(make(module, first), one) for one in batch]
    raise Unsupported(f"none of {', '.join(_PACKAGES)} can be imported")


Run = Callable[[AttentionOperands], Tensor]


def _with_cache(module: Any, first: AttentionOperands) -> Run:  # noqa: ANN401 (a module)
    """Return the call of sgl_kernel and FlashAttention's own package."""
    own = module.__name__ == "flash_attn_interface"
    need(not (own and first.sinks is not None), "flash_attn_interface takes no sinks")
    more: dict[str, Any] = {} if own else {"sinks": first.sinks}
    if not own and first.decode and not first.latent:
        more["scheduler_metadata"] = _metadata(module, first)

    def run(one: AttentionOperands) -> Tensor:
        # Engines let it allocate the output of latent attention.
        out = {} if own or first.latent else {"out": one.out}
        result: Tensor = module.flash_attn_with_kvcache(
            **_tensors(one),
            cache_seqlens=first.lengths,
            page_table=first.table,
            cu_seqlens_q=first.q_starts,
            max_seqlen_q=max(first.new),
            softmax_scale=first.scale,
            causal=True,
            window_size=_window(first),
            softcap=first.logit_cap,
            num_splits=AUTOMATIC,
            **more,
            **out,
        )
        return result

    return run


def _metadata(module: Any, first: AttentionOperands) -> Tensor | None:  # noqa: ANN401 (a module)
    """Return the metadata that sglang prepares once for all layers of a decode step."""
    if not hasattr(module, "get_scheduler_metadata") or first.window:
        return None
    found: Tensor = module.get_scheduler_metadata(
        batch_size=len(first.new),
        max_seqlen_q=1,
        max_seqlen_k=max(first.total),
        num_heads=first.q_heads,
        num_heads_k=first.kv_heads,
        headdim=first.columns[0],
        cache_seqlens=first.lengths,
        qkv_dtype=first.q.dtype,
        cu_seqlens_q=first.q_starts,
        page_size=1,
        causal=True,
        has_softcap=first.logit_cap > 0,
        num_splits=AUTOMATIC,
    )
    return found


def _vllm(module: Any, first: AttentionOperands) -> Run:  # noqa: ANN401 (a module)
    need(not first.latent, "vLLM runs latent attention in other kernels")

    def run(one: AttentionOperands) -> Tensor:
        found = _tensors(one)
        result: Tensor = module.flash_attn_varlen_func(
            q=found["q"],
            k=found["k_cache"],
            v=found["v_cache"],
            out=one.out,
            cu_seqlens_q=first.q_starts,
            max_seqlen_q=max(first.new),
            seqused_k=first.lengths,
            max_seqlen_k=max(first.total),
            softmax_scale=first.scale,
            causal=True,
            window_size=list(_window(first)),
            softcap=first.logit_cap,
            block_table=first.table,
            s_aux=first.sinks,
            fa_version=3,
        )
        return result

    return run


def _tensors(one: AttentionOperands) -> dict[str, Tensor]:
    """Return the caches in pages of a token each.

    Latent attention passes the columns that have positions apart from the columns that have none.
    """
    if not one.latent:
        caches = {"k_cache": one.k_cache.unsqueeze(1), "v_cache": one.v_cache.unsqueeze(1)}
        return {"q": one.q, **caches}
    values = one.columns[1]
    return {
        "q": one.q[..., values:],
        "qv": one.q[..., :values],
        "k_cache": one.k_cache[..., values:].unsqueeze(1),
        "v_cache": one.k_cache[..., :values].unsqueeze(1),
    }


def _window(one: AttentionOperands) -> tuple[int, int]:
    return (one.window, 0) if one.window else (-1, -1)


_PACKAGES: dict[str, Callable[[Any, AttentionOperands], Run]] = {
    "sgl_kernel.flash_attn": _with_cache,
    "vllm.vllm_flash_attn": _vllm,
    "flash_attn_interface": _with_cache,
}


def _imported(name: str) -> Any:  # noqa: ANN401 (a module, or None)
    try:
        return import_module(name)
    except ImportError:
        return None
