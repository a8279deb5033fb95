"""Messages of servers, and what `tuner diagnose` says of them; most stand in a table of data."""

from __future__ import annotations

from dataclasses import dataclass

from tables import rows

_SGLANG = "[2025-03-10 10:00:00 TP{rank}] {text}"
_VLLM = "(VllmWorker rank={rank} pid={pid}) \x1b[33mWARNING\x1b[0m 05-03 17:42:23 [x.py:668] {text}"
MOE = "Using default MoE{} config. Performance might be sub-optimal! Config file not found at {}"
SGLANG_MOE = "/sgl-workspace/sglang/python/sglang/srt/layers/moe/fused_moe_triton/configs"
OUT = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {}, Hardware "
    "limit: {}. Reducing block sizes or `num_stages` may help."
)


@dataclass(frozen=True)
class Case:
    """A log, the names of the messages in it, and words that the answer has or must not have."""

    thread: str
    log: str
    found: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def sglang(text: str, rank: int = 0) -> str:
    return _SGLANG.format(rank=rank, text=text)


def ranks(text: str, count: int) -> str:
    return "\n".join(_VLLM.format(rank=n, pid=236 + n, text=text) for n in range(count))


def _cases(kind: str) -> tuple[Case, ...]:
    return tuple(
        Case(**{name: v if isinstance(v, str) else (*v,) for name, v in row.items()})
        for row in rows("diagnose_cases.toml", kind)
    )


CASES, UNKNOWN = _cases("known"), _cases("unknown")
