"""Describe a layer's attention as a problem. Shapes have the engines' names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tuner.errors import BadProblem, one_of
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import (
    Part,
    Point,
    Problem,
    parse_flag,
    parse_number,
    parse_whole,
    read_fields,
)

_FIELDS = (
    *("q_heads", "kv_heads", "Lq", "Lv", "dtype"),
    *("page_size", "kv_splits", "window", "sinks", "logit_cap"),
)
ENGINE_KV_SPLITS = 8  # the default of sglang's --triton-attention-num-kv-splits


class AttentionPart(Part):
    """The kernels of attention. Each is launched, and so configured, separately."""

    EXTEND = "extend"  # new tokens attend to a cached prefix and to each other
    PREFILL = "prefill"  # an image's tokens, which all see each other; without a cache
    DECODE = "decode"  # one new token a sequence; splits of its cache in parallel
    REDUCE = "reduce"  # combines the splits' results

    def size_of(self, point: Point) -> str:
        return f"{point.batch_size}x{point.new_tokens}+{point.cached_tokens}"

    def point_json(self, point: Point) -> dict[str, str | int]:
        return {
            "part": self.value,
            "batch_size": point.batch_size,
            "new_tokens": point.new_tokens,
            "cached_tokens": point.cached_tokens,
        }


BucketKey = tuple[AttentionPart, int, int]  # part, sequences, new tokens of the longest (decode: 1)


class AttentionPhase(str, Enum):
    """The ways in which an engine runs a layer's attention."""

    EXTEND = "extend"
    DECODE = "decode"
    PREFILL = "prefill"


ATTENTION_PROBLEMS = ("extend_attention", "decode_attention", "prefill_attention")


@dataclass(frozen=True)
class Attention:
    """A phase of a layer's attention as one rank runs it.

    Raises BadProblem for values that no engine kernel accepts.
    """

    phase: AttentionPhase
    q_heads: int  # query heads on this rank
    kv_heads: int  # key heads on this rank
    Lq: int  # columns of a query head and of a key head
    Lv: int  # columns of a value head
    dtype: Dtype  # of queries, keys, values and the cache
    page_size: int = 1  # tokens per page of the cache
    # Decode: the most parts that the engine's own rule makes of a sequence's cache. None: the
    # number of parts is chosen, for each number of sequences and length.
    kv_splits: int | None = None
    window: int = 0  # extend: the number of previous tokens that a query sees; 0: all
    sinks: bool = False  # each head has a learnt logit that takes part in the softmax
    logit_cap: float = 0.0  # logits become cap * tanh(logit / cap); 0: no cap

    def __post_init__(self) -> None:
        if self.phase is not AttentionPhase.DECODE:  # other phases split nothing
            object.__setattr__(self, "kv_splits", None)
        for name in ("q_heads", "kv_heads", "Lq", "Lv", "page_size", "kv_splits"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadProblem(f"{name} must be at least 1, not {value}")
        if self.q_heads % self.kv_heads:
            near = min(
                (n for n in range(1, self.q_heads + 1) if self.q_heads % n == 0),
                key=lambda n: abs(n - self.kv_heads),
            )
            raise BadProblem(
                f"kv_heads={self.kv_heads} does not divide q_heads={self.q_heads}; "
                f"the nearest that does is {near}"
            )
        for name in ("Lq", "Lv"):
            if getattr(self, name) > 1024:
                raise BadProblem(f"{name}={getattr(self, name)}: no kernel has heads over 1024")
        if self.dtype not in (Dtype.BFLOAT16, Dtype.FLOAT16):
            raise BadProblem(f"attention is tuned in bfloat16 or float16, not {self.dtype.value}")
        if self.phase is AttentionPhase.PREFILL and (
            self.Lq != self.Lv or self.window or self.sinks
        ):
            raise BadProblem("prefill_attention takes heads of one size, no window and no sinks")

    @property
    def family(self) -> str:
        return f"{self.phase.value}_attention"

    @property
    def parts(self) -> tuple[AttentionPart, ...]:
        """Return the kernels that the phase launches, in order."""
        if self.phase is AttentionPhase.DECODE:
            return (AttentionPart.DECODE, AttentionPart.REDUCE)
        return (AttentionPart(self.phase.value),)

    @property
    def group(self) -> int:
        """Return the number of query heads that share a key head."""
        return self.q_heads // self.kv_heads

    @property
    def chooses_splits(self) -> bool:
        """Say whether the number of KV splits is to be chosen."""
        return self.phase is AttentionPhase.DECODE and self.kv_splits is None

    @property
    def most_splits(self) -> int:
        """Return the splits that a launch has room for: the engines' default if they are to be
        chosen.
        """
        return self.kv_splits or ENGINE_KV_SPLITS

    def with_room(self, splits: int) -> Attention:
        """Return the same decode with a given number of splits."""
        return replace(self, kv_splits=splits)

    def shares_keys_in(self, block_h: int) -> bool:
        """Say whether every block of `block_h` query heads lies within a single group.

        The kernel counts blocks from the first head on and reads one group's keys for each. So a
        block across two groups reads wrong keys, as measurements confirmed.
        """
        return block_h >= self.group or self.group % block_h == 0

    @property
    def shares_kv(self) -> bool:
        """Say whether attention is latent (MLA): a value is the first columns of its key."""
        return self.kv_heads == 1 and self.Lq in (288, 576) and self.Lv < self.Lq

    @property
    def latent(self) -> bool:
        """Say whether a model with latent (MLA) attention runs it, absorbed or with all its
        heads.
        """
        return self.shares_kv or (self.q_heads == self.kv_heads and self.Lq > self.Lv)

    def spec(self) -> str:
        """Return the canonical text of this problem; `parse_problem` reads it back."""
        parts = [f"q_heads={self.q_heads}", f"kv_heads={self.kv_heads}"]
        parts += [f"Lq={self.Lq}", f"Lv={self.Lv}", f"dtype={self.dtype.value}"]
        if self.page_size != 1:
            parts.append(f"page_size={self.page_size}")
        if self.kv_splits is not None:
            parts.append(f"kv_splits={self.kv_splits}")
        if self.window:
            parts.append(f"window={self.window}")
        if self.sinks:
            parts.append("sinks")
        if self.logit_cap:
            parts.append(f"logit_cap={_number(self.logit_cap)}")
        return f"{self.family}:{','.join(parts)}"


def bucket_of(point: Point) -> BucketKey:
    """Return the bucket of a point: a running engine does not distinguish numbers of cached
    tokens.
    """
    assert isinstance(point.part, AttentionPart), f"{point} is no attention's"
    lengths = point.part in (AttentionPart.EXTEND, AttentionPart.PREFILL)
    return point.part, point.batch_size, point.new_tokens if lengths else 1


def _number(value: float) -> str:
    """Return the shortest text that reads back as the value: 30, 30.5."""
    return str(int(value)) if value == int(value) else repr(value)


def same_shape(one: Problem, other: Problem) -> bool:
    """Say whether two problems differ at most in dtype, page size and KV splits, which server flags
    determine.
    """
    assert isinstance(one, Attention)
    assert isinstance(other, Attention)
    return _bare(one) == _bare(other)


def _bare(problem: Attention) -> Attention:
    return replace(problem, dtype=Dtype.BFLOAT16, page_size=1, kv_splits=None)


def parse_attention(text: str) -> Attention:
    """Read `decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16`.

    Raises BadProblem, which names the nearest phase or field.
    """
    name = text.partition(":")[0]
    if name not in ATTENTION_PROBLEMS:
        raise BadProblem(f"unknown kind of problem {name!r}{one_of(name, ATTENTION_PROBLEMS)}")
    fields = read_fields(text, _FIELDS, required=5)
    optional = [n for n in ("page_size", "kv_splits", "window") if n in fields]
    return Attention(
        phase=AttentionPhase(text.partition("_")[0]),
        **{n: parse_whole(n, fields[n]) for n in ("q_heads", "kv_heads", "Lq", "Lv", *optional)},
        dtype=parse_dtype(fields["dtype"]),
        sinks=parse_flag("sinks", fields.get("sinks", "false")),
        logit_cap=parse_number("logit_cap", fields.get("logit_cap", "0")),
    )
