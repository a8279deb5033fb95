"""How routing spreads tokens over experts, and what the padding to whole blocks costs.

Every token goes to `top_k` different experts, each equally likely, so the tokens of one expert
are Binomial(batch_size, top_k / E): expectations are sums over that distribution, not samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tuner.engines.sglang.fused_moe.binding import sorted_slots


@dataclass(frozen=True)
class ExpertLoad:
    """The sorted tokens of a batch, in blocks of one expert's rows each; expected values."""

    experts: float  # that any token goes to
    blocks: float  # that hold rows
    rows: float  # a block's rows that are no padding
    empty_blocks: float  # that the launch covers beyond those: their programs return at once


@lru_cache(maxsize=4096)
def expected_load(batch_size: int, E: int, top_k: int, block_m: int) -> ExpertLoad:
    """The load of `batch_size` tokens sorted into blocks of `block_m` rows."""
    counts = _binomial(batch_size, top_k / E)
    blocks = E * sum(p * math.ceil(count / block_m) for count, p in counts)
    experts = E * sum(p for count, p in counts if count)
    routed = batch_size * top_k
    launched = math.ceil(sorted_slots(routed, E, block_m) / block_m)
    return ExpertLoad(experts, blocks, routed / blocks, max(0.0, launched - blocks))


@lru_cache(maxsize=256)
def _binomial(n: int, p: float) -> tuple[tuple[int, float], ...]:
    """(value, probability) of Binomial(n, p), to nine standard deviations from its mean."""
    if p >= 1:
        return ((n, 1.0),)
    reach = 9 * math.sqrt(n * p * (1 - p)) + 9
    first, last = max(0, int(n * p - reach)), min(n, int(n * p + reach))
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(n + 1)
    return tuple(
        (
            k,
            math.exp(
                log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log_p + (n - k) * log_q
            ),
        )
        for k in range(first, last + 1)
    )
