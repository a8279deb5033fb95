"""Define problems, their texts, the points to choose configurations for, and configurations.

Also define facts about Triton that need no import (default options, folders), the short names of
the backends that may run a problem instead, and the known settings of a server that runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol

from tuner.errors import BadProblem, did_you_mean


class Problem(Protocol):
    """A kernel, or several kernels that an engine runs together, with the sizes of one rank.

    Problems are hashable values.
    """

    @property
    def family(self) -> str:
        """Return the name at the start of its text, e.g. "fused_moe" or "decode_attention"."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the kernel launches that are configured separately, in the order of launch."""

    def spec(self) -> str:
        """Return the canonical text of this problem; `registry.parse_problem` reads it back."""


class Part(str, Enum):
    """A kernel launch of a problem. Each family has an enumeration of its parts."""

    __hash__ = str.__hash__  # Enum's is slow, and pages of coverage hash thousands of points

    def size_of(self, point: Point) -> str:
        """Return the point without its part, for people."""
        return f"M={point.batch_size}"

    def point_json(self, point: Point) -> dict[str, str | int]:
        """Return the point as reports and the API show it."""
        return {"part": self.value, "batch_size": point.batch_size}


@dataclass(frozen=True, order=True)
class Point:
    """A part of a problem at one size. Tuning chooses one configuration for each point.

    `batch_size` counts tokens for a fused-MoE layer and sequences for attention.
    """

    batch_size: int
    part: Part
    new_tokens: int = 0  # attention: new tokens of the longest sequence; 1 for decode
    cached_tokens: int = 0  # attention: cached tokens per sequence, on average

    @property
    def size(self) -> str:
        """Return the point without its part, for people: "M=8", or "4x512+8192"."""
        return self.part.size_of(self)

    def as_json(self) -> dict[str, str | int]:
        """Return the point as reports and the API show it."""
        return self.part.point_json(self)

    def __str__(self) -> str:
        return f"{self.size} {self.part.value}"


@dataclass(frozen=True)
class ChartPosition:
    """A place in a problem's picture; `Family.place` returns the place of a point.

    Points of one chart at one `x` are launched one after the other, and their times are added up.
    """

    chart: str  # the chart's title, e.g. "up gemm"
    x: float  # above zero
    x_label: str  # the unit of the axis, e.g. "batch size (tokens)"


class Config(Mapping[str, int]):
    """A launch configuration: the engine's keys with whole numbers; immutable and hashable.

    The order of keys does not matter. USE_TMA is 0 or 1 here, and a boolean in engine files.
    """

    __slots__ = ("_values", "key")

    key: str  # canonical text, e.g. "BLOCK_SIZE_M=16,..."; identifies it in stores and caches

    def __init__(self, values: Mapping[str, int]) -> None:
        # A false USE_TMA and an absent one launch the same kernel, so they are equal here.
        self._values = {k: int(v) for k, v in values.items() if not (k == "USE_TMA" and not v)}
        self.key = ",".join([f"{k}={v}" for k, v in sorted(self._values.items())])

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.key == other.key

    def __lt__(self, other: Config) -> bool:
        return self.key < other.key

    def __repr__(self) -> str:
        return f"Config({self.key})"

    def replace(self, **changes: int) -> Config:
        return Config({**self._values, **changes})


TRITON = "triton"  # the backend whose kernels are tuned


@dataclass(frozen=True)
class Candidate:
    """A configuration proposed for a point, or another backend's kernel, which has no
    configuration.
    """

    point: Point
    config: Config
    backend: str = TRITON  # "deep_gemm"; dispatch.toml has the names


# The options that `triton.compile` uses for CUDA if a configuration has none.
TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_HIP_DEFAULTS = {"num_warps": 4, "num_stages": 2}
PTXAS_SETTINGS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")  # variables with ptxas's path


def triton_defaults(platform: str) -> dict[str, int]:
    """Return the options that `triton.compile` uses for "cuda" or "hip" by default."""
    return dict(_HIP_DEFAULTS if platform == "hip" else TRITON_DEFAULTS)


def version_folder(version: str) -> str:
    """Return the name of a version's folder: "3.6.0" -> "triton_3_6_0"."""
    return f"triton_{version.replace('.', '_')}"


def folder_version(name: str) -> str:
    """Return the version in a folder's name; the inverse of `version_folder`."""
    return name.removeprefix("triton_").replace("_", ".")


# dispatch.toml, candidates, incumbents and stores have the names; people read the titles.
TITLES = {
    "aiter": "AITER",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cutedsl": "CuteDSL",
    "cutlass": "CUTLASS",
    "cutlass_mla": "CUTLASS MLA",
    "deep_gemm": "DeepGEMM",
    "dsa": "DeepSeek Sparse Attention",
    "ep_moe": "EPMoE's grouped GEMM",
    "fa2": "FlashAttention 2",
    "fa3": "FlashAttention 3",
    "fa4": "FlashAttention 4",
    "flash_mla": "FlashMLA",
    "flashinfer": "FlashInfer",
    "flashinfer_cutlass": "FlashInfer (CUTLASS)",
    "flashinfer_deepgemm": "FlashInfer (DeepGEMM)",
    "flashinfer_mxfp8": "FlashInfer (MXFP8)",
    "flashinfer_trtllm": "FlashInfer (TRT-LLM)",
    "humming": "Humming",
    "marlin": "Marlin",
    "none": "no kernel",
    "qsa": "Qwen's sparse attention",
    "sdpa": "PyTorch's SDPA",
    "sglang_mxfp8": "sglang's own MXFP8 kernels",
    "triton": "Triton",
    "triton_int8": "Triton's kernel for int8",
    "triton_kernels": "triton_kernels",
    "triton_wna16": "Triton's kernel for int4",
    "trtllm_mha": "FlashInfer (TRT-LLM MHA)",
    "trtllm_mla": "FlashInfer (TRT-LLM MLA)",
}


def title_of(backend: str) -> str:
    """Return a backend's name for people; a backend without a title has its short name."""
    return TITLES.get(backend, backend)


def read_fields(text: str, known: Sequence[str], required: int) -> dict[str, str]:
    """Return the fields after the colon, by name; a flag has the value "".

    The first `required` fields of `known` must be there. Raises BadProblem for a field that is
    unknown or missing.
    """
    fields: dict[str, str] = {}
    for part in filter(None, text.partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BadProblem(f"unknown field {name!r} in {text!r}{did_you_mean(name, known)}")
        fields[name] = value
    missing = [name for name in known[:required] if name not in fields]
    if missing:
        raise BadProblem(f"{text!r} lacks {', '.join(missing)}")
    return fields


def parse_block_shape(text: str) -> tuple[int, int]:
    """Read a quantisation block, "128x128": rows by columns. Raises BadProblem."""
    n, _, k = text.partition("x")
    return parse_whole("block_shape", n), parse_whole("block_shape", k)


def parse_whole(name: str, text: str) -> int:
    """Read a whole number, 0 or more. Raises BadProblem, which names the field."""
    # int() also reads "1_0" and non-ASCII digits, which the engine's file names never hold.
    if not _digits(text):
        raise BadProblem(f"{name} must be a whole number, not {text!r}")
    return int(text)


def parse_flag(name: str, text: str) -> bool:
    """Read true or false; "" is true. Raises BadProblem, which names the field."""
    if text.lower() not in ("", "true", "false"):
        raise BadProblem(f"{name} must be true or false, not {text!r}")
    return text.lower() != "false"


def parse_number(name: str, text: str) -> float:
    """Read a number, 0 or more, e.g. "30" or "0.5". Raises BadProblem, which names the field."""
    whole, _, fraction = text.partition(".")
    if not (_digits(whole) and (not fraction or _digits(fraction))):
        raise BadProblem(f"{name} must be a number, not {text!r}")
    return float(text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


@dataclass(frozen=True)
class ServerSettings:
    """The settings that decide, besides problem, card and release, which kernel a server runs.

    An empty text is not known; without flags, a server has its defaults.
    """

    architecture: str = ""  # the class of its model
    checkpoint: str = ""  # how that stores experts: `stored_as` of a model
    server_args: str = ""  # flags and variables, as people type them

    def as_json(self) -> dict[str, str]:
        """Return the texts by name, without empty texts."""
        return {name: text for name, text in asdict(self).items() if text}

    def __bool__(self) -> bool:
        return self != UNKNOWN_SERVER


UNKNOWN_SERVER = ServerSettings()


def read_server(values: Mapping[str, Any]) -> ServerSettings:
    """Read the fields of `as_json` among other values. Earlier programs did not write
    all of them.
    """
    names = asdict(UNKNOWN_SERVER)
    return ServerSettings(**{name: str(values.get(name, "")) for name in names})
