"""Keep constants of GPUs that no data sheet gives, for the models that predict kernel times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Constants of the models. All are round numbers, and no optimiser fitted them.

    Values marked (H200) were set or changed after a recording on an H200 (fp8 in blocks, E=256,
    N=256, K=7168). The model alone has 3.6 % regret on it, and 3.0 % to 6.6 % with any single
    constant 50 % smaller or larger.
    """

    launch_us: float = 2.5
    start_ns: float = 1500.0  # launch of a block and its series of dependent loads (H200)
    end_ns: float = 500.0  # stores of a block
    empty_ns: float = 700.0  # a block without rows: launch and one load
    dram_latency_ns: float = 700.0  # under load (H200)
    l2_latency_ns: float = 300.0
    dram_efficiency: float = 0.92  # share of the data sheet's bandwidth (H200)
    short_row: float = 0.62  # further factor if a row's piece is half a cache line (H200)
    mma_efficiency: float = 0.85  # share of the peak tensor-core rate
    shared_bytes_per_clock: float = 128.0  # of an SM
    converted_per_clock: float = 128.0  # elements an SM converts to a wider type (H200)
    step_clocks: float = 100.0  # per step: barrier of a block, latency of its multiply-adds
    step_instructions: float = 100.0  # of a warp per step: loop, addresses, scales (H200)
    copy_instructions: float = 10.0  # per 16 bytes copied: address, mask, copy (H200)
    rescale_instructions: float = 2.0  # per accumulator, if each step has its own scales
    spill_bytes_per_clock: float = 64.0  # between a block and the L1 cache of its SM (H200)
    norm: float = 3.0  # exponent that combines limits; infinity takes their maximum (H200)
