"""What no data sheet says of a GPU, and the models of kernels' times need all the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """docs/predict.md has each one's reason and the result's sensitivity to it; those marked
    (H200) were set or changed by one recording of that card.
    """

    launch_us: float = 2.5
    start_ns: float = 1500.0  # a block's launch and its chain of dependent loads (H200)
    end_ns: float = 500.0  # its stores
    empty_ns: float = 700.0  # a block without rows: launch and one load
    dram_latency_ns: float = 700.0  # loaded (H200)
    l2_latency_ns: float = 300.0
    dram_efficiency: float = 0.92  # of the data sheet's bandwidth (H200)
    short_row: float = 0.62  # of that, where a row's piece is half a cache line (H200)
    mma_efficiency: float = 0.85
    shared_bytes_per_clock: float = 128.0
    converted_per_clock: float = 128.0  # elements, to a wider type (H200)
    step_clocks: float = 100.0  # a block's barrier and the latency of its multiply-adds
    step_instructions: float = 100.0  # a warp's: loop, addresses, scales (H200)
    copy_instructions: float = 10.0  # for 16 bytes copied: address, mask, copy (H200)
    rescale_instructions: float = 2.0  # an accumulator's, where a step has scales of its own
    spill_bytes_per_clock: float = 64.0  # between a block and its SM's L1 cache (H200)
    norm: float = 3.0  # how softly limits add: infinity is their maximum (H200)
