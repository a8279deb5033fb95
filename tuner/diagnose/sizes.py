"""Which size fits instead: ranks, shares of memory."""

from __future__ import annotations

from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding

_CHANNELS = "a checkpoint with a scale for each channel instead of blocks."
_EXPERTS = (
    "expert parallelism (vLLM's --enable-expert-parallel, sglang's --ep-size), which divides "
    "experts instead of their weights and still cuts a shared expert; or "
)
_HOST_GIB = 8  # that a host keeps whose memory the GPU shares
_LINEAR = "Weight "  # a linear layer's message begins so; expert parallelism does not divide it


def block_shape(finding: LogFinding, context: Context) -> Added:
    """The largest tensor-parallel size below the server's whose shares are whole blocks."""
    size, block, tp = _number(finding, "size"), _number(finding, "block"), context.tp
    linear = finding.form.text.startswith(_LINEAR)
    otherwise = _CHANNELS if linear else _EXPERTS + _CHANNELS
    if not tp or not block:
        smaller = f"Use a smaller --tp, so that each rank holds a multiple of {block}; or"
        return Added((), (f"{smaller} {otherwise}",))
    whole = size * tp
    fits = [n for n in range(1, tp) if tp % n == 0 and whole % (n * block) == 0]
    if not fits:
        none = (
            f"If it failed with --tp {tp}, the whole weight has {whole:,}, and no smaller size "
            "divides it into whole blocks."
        )
        return Added((none,), (f"Use {otherwise}",))
    asked, tp = tp, fits[-1]
    return Added(
        (
            f"If it failed with --tp {asked}, the whole weight has {whole:,}: {tp} ranks hold "
            f"{whole // tp:,} each.",
        ),
        (f"Use --tp {tp}, with pipeline or data parallelism for the other GPUs; or {otherwise}",),
        {"tp": tp},
    )


def heads(finding: LogFinding, context: Context) -> Added:
    """The sizes that divide the heads."""
    count, asked = _number(finding, "heads"), _number(finding, "tp")
    fits = [n for n in range(1, min(count, 128) + 1) if count % n == 0]
    near = max((n for n in fits if n <= asked), default=1)
    return Added(
        (f"These sizes divide {count}: {', '.join(map(str, fits))}.",),
        (
            f"Use --tensor-parallel-size {near}. --pipeline-parallel-size, which divides layers, "
            "can use more GPUs.",
        ),
        {"tp": near},
    )


def divides(finding: LogFinding, context: Context) -> Added:
    """The sizes that divide a number of which nothing tells what it counts."""
    size = _number(finding, "size")
    fits = [str(n) for n in range(1, min(size, 128) + 1) if size % n == 0]
    odd = " It is odd, so that no power of two but 1 does." if size % 2 else ""
    return Added((f"These sizes divide {size}: {', '.join(fits)}.{odd}",))


def memory_taken(finding: LogFinding, context: Context) -> Added:
    """The share of the GPU's memory that is free."""
    free, total = (float(finding.values[name]) for name in ("free", "total"))
    left = _HOST_GIB if context.unified else 0
    share = int(100 * max(0.0, free - left) / total) / 100 if total else 0.0
    steps = [] if context.unified else ["$ nvidia-smi"]
    if share >= 0.1:
        rest = f", less {_HOST_GIB} GiB for the host" if left else ""
        steps.append(f"If the other process is to stay, take what is free{rest}:")
        steps.append(f"$ --gpu-memory-utilization {share:.2f}")
    return Added((), tuple(steps), {"gpu_memory_utilization": share})


def _number(finding: LogFinding, name: str) -> int:
    return int(finding.values[name].replace(",", "")[:18])
