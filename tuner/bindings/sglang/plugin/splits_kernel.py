"""Write the KV splits of each sequence by a kernel, once before each decode step.

It is a single launch, as in the engine. In torch's operations it was seven, and servers whose steps
wait for the host became slower: 0.93x for decode of 16 sequences in a model of six layers on an
H100.
"""

# Triton reads the annotations of a kernel, so its arguments have none.
# ruff: noqa: ANN001
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LEAST_BLOCK = 256  # so that batches of up to so many sequences share a compiled kernel


@triton.jit(do_not_specialize=["sequences", "most"])
def write_splits(
    splits,
    seq_lens,
    rows,
    lengths,
    numbers,
    sequences,
    most,
    ROWS: tl.constexpr,
    LENGTHS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write `splits` of `sequences` sequences, whose cached tokens are in `seq_lens`.

    A sequence is treated as if all tokens of the batch were in sequences of its length. So a
    sequence that is much longer than the others gets as many splits as in a small batch. `rows` has
    the ROWS thresholds of the number of such sequences, `lengths` the LENGTHS thresholds of tokens,
    and `numbers` the splits by both. A single program does all; BLOCK is at least the number of
    sequences.
    """
    places = tl.arange(0, BLOCK)
    there = places < sequences
    held = tl.load(seq_lens + places, mask=there, other=0).to(tl.int64)
    alike = tl.sum(held).to(tl.float32) / tl.maximum(held, 1).to(tl.float32)
    row = tl.zeros([BLOCK], tl.int32)
    for at in tl.static_range(ROWS):
        row += (alike >= tl.load(rows + at)).to(tl.int32)
    column = tl.zeros([BLOCK], tl.int32)
    for at in tl.static_range(LENGTHS):
        column += (held >= tl.load(lengths + at)).to(tl.int32)
    chosen = tl.load(numbers + row * (LENGTHS + 1) + column, mask=there, other=1)
    tl.store(splits + places, tl.minimum(chosen, most), mask=there)
