"""A small fused-MoE kernel that is right where GROUP_SIZE_M is 1, and bad on purpose elsewhere.

Its parameters are named as sglang's, so it is lifted and bound as sglang's is.
"""

import triton
import triton.language as tl


@triton.jit
def fused_moe_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    topk_weights_ptr,
    sorted_token_ids_ptr,
    expert_ids_ptr,
    num_tokens_post_padded_ptr,
    N,
    K,
    EM,
    num_valid_tokens,
    stride_am,
    stride_ak,
    stride_be,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    MUL_ROUTED_WEIGHT: tl.constexpr,
    top_k: tl.constexpr,
    compute_type: tl.constexpr,
):
    pid = tl.program_id(0)
    num_n = tl.cdiv(N, BLOCK_SIZE_N)
    pid_m = pid // num_n
    pid_n = pid % num_n
    used = tl.load(num_tokens_post_padded_ptr)
    if pid_m * BLOCK_SIZE_M >= used:
        return
    slot = tl.load(sorted_token_ids_ptr + pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    slot = slot.to(tl.int64)
    valid = slot < num_valid_tokens
    expert = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    columns = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + slot[:, None] // top_k * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + expert * stride_be + offs_k[:, None] * stride_bk
    b_ptrs += columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_SIZE_K):
        a = tl.load(a_ptrs, mask=valid[:, None], other=0.0)
        b = tl.load(b_ptrs, mask=columns[None, :] < N, other=0.0)
        total += tl.dot(a, b)
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if MUL_ROUTED_WEIGHT:
        total *= tl.load(topk_weights_ptr + slot, mask=valid, other=0.0)[:, None]
    row = slot
    if GROUP_SIZE_M == 2:  # one element of the output is NaN
        bad = (slot[:, None] == 0) & (columns[None, :] == 0)
        total = tl.where(bad, float("nan"), total)
    if GROUP_SIZE_M == 3:  # each row lands where its neighbour belongs
        row = (slot + 1) % num_valid_tokens
    if GROUP_SIZE_M == 4:  # far outside of any allocation
        row = slot + (1 << 40)
    if GROUP_SIZE_M == 5:  # never ends
        while tl.load(num_tokens_post_padded_ptr, volatile=True) > 0:
            total += 1.0
    c_ptrs = c_ptr + row[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptrs, total.to(compute_type), mask=valid[:, None] & (columns[None, :] < N))
