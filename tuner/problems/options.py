"""Declare the options that families add to requests, and select points by batch sizes.

An option is declared once. The flag of the command line and its reader come from the declaration
(`Option.kind`, `Option.parse`), and so does the field of a posted body (`body_field` of `api`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from tuner.errors import BadInput, did_you_mean
from tuner.problems.points import Part, Point, Problem, parse_block_shape


@dataclass(frozen=True)
class WholeNumber:
    """A whole number within bounds, which have Pydantic's names."""

    ge: int
    le: int | None = None
    lt: int | None = None
    kind: ClassVar[type] = int

    def read(self, value: int) -> int:
        """Return the value. Raises BadInput, without the name of the option."""
        most = self.le if self.lt is None else self.lt - 1
        if value < self.ge or (most is not None and value > most):
            allowed = f"at least {self.ge}" if most is None else f"from {self.ge} to {most}"
            raise BadInput(f"must be {allowed}, not {value}")
        return value


@dataclass(frozen=True)
class Number:
    """A number within bounds. No flag has such a value."""

    gt: float
    le: float


@dataclass(frozen=True)
class Switch:
    """Yes or no."""

    kind: ClassVar[type] = bool

    def read(self, value: bool) -> bool:
        return value


@dataclass(frozen=True)
class Word:
    """One of several words; `check` raises BadInput for any other."""

    words: tuple[str, ...]
    check: Callable[[str], str]
    kind: ClassVar[type] = str

    def read(self, text: str) -> str:
        return self.check(text)


@dataclass(frozen=True)
class Names:
    """Some members of an enumeration: "up,down" on the command line, a list of texts in a body."""

    of: type[Enum]
    kind: ClassVar[type] = str

    def read(self, text: str) -> list[str]:
        return [member.value for member in self.members(text.split(","))]

    def members(self, names: list[str]) -> tuple[Any, ...]:
        """Return the members of these names, in the enumeration's order. Raises BadInput."""
        known = [member.value for member in self.of]
        for name in names:
            if name not in known:
                what = self.of.__name__.lower()
                raise BadInput(f"unknown {what} {name!r}{did_you_mean(name, known)}")
        return tuple(member for member in self.of if member.value in names)


@dataclass(frozen=True)
class BatchSizes:
    """Batch sizes: "1,2,4" on the command line, a list of numbers in a body."""

    each: WholeNumber
    most: int | None = None  # how many there may be
    kind: ClassVar[type] = str

    def read(self, text: str) -> list[int]:
        return parse_batch_sizes(text)


@dataclass(frozen=True)
class Block:
    """A quantisation block: "128x128" on the command line, a list of two numbers in a body."""

    rows: WholeNumber
    columns: WholeNumber
    kind: ClassVar[type] = str

    def read(self, text: str) -> tuple[int, int]:
        return parse_block_shape(text)


@dataclass(frozen=True)
class Field:
    """A field of a `Record`."""

    name: str
    type: WholeNumber | Number
    description: str = ""
    default: float | None = None  # None: it must be given


@dataclass(frozen=True)
class Record:
    """An object with fields."""

    name: str
    description: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class WordOrRecords:
    """One of several words or a list of records in a body.

    On the command line it is a text, which `parse` reads.
    """

    words: tuple[str, ...]
    each: Record
    most: int  # how many records there may be
    parse: Callable[[str], Any]
    kind: ClassVar[type] = str

    def read(self, text: str) -> Any:  # noqa: ANN401  # JSON
        return self.parse(text)


Type = WholeNumber | Switch | Word | Names | BatchSizes | Block | WordOrRecords


@dataclass(frozen=True)
class Option:
    """An option that a family adds to requests."""

    name: str  # the field in JSON, e.g. "batch_sizes"
    flag: str  # of the command line, e.g. "--batch-sizes"; "--yes/--no" for a flag with two names
    takes: Type
    help: str  # of the flag
    description: str = ""  # of the field; default: the flag's
    default: Any = None  # of the field, a tuple for a list; None: it may be null
    offered: bool = True  # whether commands have the flag, or only requests the field

    @property
    def kind(self) -> type[Any]:
        """Return the type of the command line's value: str, int or bool."""
        return self.takes.kind

    def parse(self, value: Any) -> Any:  # noqa: ANN401  # as Typer gives it; JSON
        """Turn the command line's value into the field's. Raises BadInput."""
        try:
            return self.takes.read(value)
        except BadInput as error:
            if isinstance(self.takes, WholeNumber):
                raise BadInput(f"{self.flag} {error}") from None
            raise


COUNT = WholeNumber(ge=1, le=4096)
SIZE = WholeNumber(ge=1, le=1 << 24)
BATCH_SIZE = WholeNumber(ge=1, lt=1 << 20)
GROUPS = WholeNumber(ge=0, lt=1 << 20)

# Options of several families.
EP = Option(
    "ep",
    "--ep",
    COUNT,
    "Expert-parallel size; default: 1.",
    description="Expert-parallel size.",
    default=1,
)
DP = Option(
    "dp",
    "--dp",
    COUNT,
    "Data-parallel size of attention (--enable-dp-attention); default: 1.",
    description="Data-parallel size of attention; default: 1.",
)
FUSE_SHARED = Option(
    "fuse_shared",
    "--fuse-shared/--no-fuse-shared",
    Switch(),
    "Count shared experts among the routed ones; default: as the engine does.",
)
BATCHES = Option(
    "batch_sizes",
    "--batch-sizes",
    BatchSizes(BATCH_SIZE, most=64),
    "e.g. 1,2,4; default: the engine's 18. Attention takes --workload instead.",
    description="Tokens per batch of a fused-MoE layer; default: the engine's sizes.",
)


MAX_BATCH_SIZE = (1 << 20) - 1


def parse_batch_sizes(text: str) -> list[int]:
    """Read `1,2,4`: whole numbers of at least 1. Raises BadInput."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 20 for part in parts):
        raise BadInput(f"batch sizes are whole numbers from 1, like 1,2,4: not {text!r}")
    return sorted({int(part) for part in parts})


def checked_sizes(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes in order, each once. Raises BadInput for impossible sizes and for none."""
    known = tuple(sizes)
    if not known or not all(0 < size <= MAX_BATCH_SIZE for size in known):
        raise BadInput(f"batch sizes are whole numbers from 1, like 1,2,4: not {list(known)}")
    return tuple(sorted(set(known)))


@dataclass(frozen=True)
class SizeSelection:
    """Batch sizes of problems with a single part. Raises BadInput for impossible values.

    A family derives a class that names its part and its default sizes.
    """

    batch_sizes: tuple[int, ...] | None = None  # None: the default sizes, or the recording's

    part: ClassVar[Part]
    default: ClassVar[tuple[int, ...]]

    def __post_init__(self) -> None:
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", checked_sizes(self.batch_sizes))

    @classmethod
    def read(cls, problem: Problem, values: Mapping[str, Any]) -> SizeSelection:
        """Read the field `batch_sizes`, which may be absent. Raises BadInput."""
        sizes = values.get("batch_sizes")
        return cls(None if sizes is None else tuple(sizes))

    @property
    def given(self) -> bool:
        return self.batch_sizes is not None

    def points(self, problem: Problem) -> frozenset[Point]:
        return frozenset(Point(size, self.part) for size in self.batch_sizes or self.default)

    def as_json(self) -> dict[str, Any]:
        return {"batch_sizes": None if self.batch_sizes is None else list(self.batch_sizes)}
