"""The state update of a Mamba-2 layer as a problem.

For each sequence and head, with x and the output of `head_dim` numbers, B and C of `state_size`:

    state = state * exp(A * dt) + dt * x (outer) B        state: (head_dim, state_size)
    out = state @ C + D * x                               dt after softplus
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype, check_state_dtype, parse_dtype
from tuner.problems.points import Part, Point, Problem, parse_whole, read_fields

NAME = "state_update"
# Sequences of a batch; an engine captures CUDA graphs for about these.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
_MOST = {"heads": 4096, "head_dim": 1024, "state_size": 1024, "groups": 4096}


class Update(Part):
    """The only launch of a state update."""

    STATE = "state"

    def size_of(self, point: Point) -> str:
        return f"sequences={point.batch_size}"


@dataclass(frozen=True)
class StateUpdate:
    """The update as one rank runs it. Raises BadProblem for impossible sizes."""

    heads: int  # of this rank
    head_dim: int
    state_size: int
    groups: int  # of this rank; the heads of a group share B and C
    dtype: Dtype = Dtype.BFLOAT16  # of x, B, C, dt and the output
    cache_dtype: str = "bfloat16"  # of the states, one of STATE_DTYPES

    family: ClassVar[str] = NAME
    parts: ClassVar[tuple[Update, ...]] = (Update.STATE,)

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.heads % self.groups:
            raise BadProblem(f"groups={self.groups} do not divide heads={self.heads}")
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")
        check_state_dtype(self.cache_dtype)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of one sequence."""
        each = 4 if self.cache_dtype == "float32" else 2
        return self.heads * self.head_dim * self.state_size * each

    def spec(self) -> str:
        """The canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in _MOST]
        types = [f"dtype={self.dtype.value}", f"cache_dtype={self.cache_dtype}"]
        return f"{NAME}:{','.join([*sizes, *types])}"


def same_states(one: Problem, other: Problem) -> bool:
    """Whether two problems differ at most in what files and kernels leave out: bfloat16 and float16
    states have the same width.
    """
    assert isinstance(one, StateUpdate)
    assert isinstance(other, StateUpdate)
    return _by_width(one) == _by_width(other)


def _by_width(problem: StateUpdate) -> StateUpdate:
    wide = problem.cache_dtype == "float32"
    cache = "float32" if wide else "bfloat16"
    return replace(problem, dtype=Dtype.BFLOAT16, cache_dtype=cache)


def parse_state_update(text: str) -> StateUpdate:
    """Read `state_update:heads=16,head_dim=64,state_size=128,groups=1,dtype=bfloat16,cache_dtype=
    float32`; both types are bfloat16 where they are left out.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, (*_MOST, "dtype", "cache_dtype"), required=len(_MOST))
    return StateUpdate(
        **{name: parse_whole(name, fields[name]) for name in _MOST},
        dtype=parse_dtype(fields.get("dtype", Dtype.BFLOAT16.value)),
        cache_dtype=fields.get("cache_dtype", "bfloat16"),
    )
