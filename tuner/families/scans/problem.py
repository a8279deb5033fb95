"""Define the common base of the problems of chunked scans: sizes, types and a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype, check_state_dtype, parse_dtype
from tuner.problems.points import parse_whole, read_fields

_DTYPES = (Dtype.BFLOAT16, Dtype.FLOAT16)
T = TypeVar("T", bound="ScanSizes")


class ScanSizes:
    """The base of a family's problem, a frozen dataclass with these fields and its sizes."""

    dtype: Dtype
    state_dtype: str  # one of STATE_DTYPES

    family: ClassVar[str]
    most: ClassVar[Mapping[str, int]]  # the fields that are sizes, and the largest of each
    words: ClassVar[Mapping[str, str]] = {}  # the fields that are words, and their usual values

    def __post_init__(self) -> None:
        for name, most in self.most.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadProblem(f"{name} must be from 1 to {most}, not {getattr(self, name)}")
        if self.dtype not in _DTYPES:
            wanted = " or ".join(dtype.value for dtype in _DTYPES)
            raise BadProblem(f"dtype must be {wanted}, not {self.dtype.value}")
        check_state_dtype(self.state_dtype)

    def spec(self) -> str:
        """Return the canonical text of this problem; `parse_problem` reads it back."""
        sizes = [f"{name}={getattr(self, name)}" for name in self.most]
        types = [f"dtype={self.dtype.value}", f"state_dtype={self.state_dtype}"]
        unusual = [(n, getattr(self, n)) for n, usual in self.words.items()]
        words = [f"{name}={word}" for name, word in unusual if word != self.words[name]]
        return f"{self.family}:{','.join([*sizes, *types, *words])}"

    @classmethod
    def parse(cls: type[T], text: str) -> T:
        """Read a problem's text. If they are left out, dtype is bfloat16, state_dtype float32 and
        words the usual.

        Raises BadProblem, which names the nearest field.
        """
        usual = {"dtype": Dtype.BFLOAT16.value, "state_dtype": "float32", **cls.words}
        fields: dict[str, Any] = read_fields(text, (*cls.most, *usual), required=len(cls.most))
        sizes = {name: parse_whole(name, fields[name]) for name in cls.most}
        words = {name: fields.get(name, value) for name, value in usual.items()}
        return cls(**{**sizes, **words, "dtype": parse_dtype(words["dtype"])})
