"""Stand in for the objects that an engine's source file imports.

Tensors are shapes, kernels record how they are launched, and a value that only a running engine
knows refuses each question.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn, overload

from tuner.devices.target import CUDA, HIP, Target
from tuner.errors import UnsupportedKernel
from tuner.kernels.source import platform_probes


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, shape and element type (Triton's short name: bf16, i64 ...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None  # elements; None: contiguous

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> object:
        return Unknown("a tensor's device")

    @overload
    def stride(self, dim: int) -> int: ...
    @overload
    def stride(self) -> tuple[int, ...]: ...
    def stride(self, dim: int | None = None) -> int | tuple[int, ...]:
        if dim is None:
            return tuple(self.stride(i) for i in range(self.ndim))
        if self.strides is not None:
            return self.strides[dim]
        return math.prod(self.shape[dim + 1 :]) if dim != -1 else 1

    @overload
    def size(self, dim: int) -> int: ...
    @overload
    def size(self) -> tuple[int, ...]: ...
    def size(self, dim: int | None = None) -> int | tuple[int, ...]:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        return self.strides is None

    def is_floating_point(self) -> bool:
        return Element(self.dtype).is_floating_point

    def contiguous(self) -> TensorSpec:
        """Return the same tensor if it is contiguous; a copy would be unnamed, and is refused."""
        if self.strides is not None:
            raise UnsupportedKernel(f"it copies {self.name or 'a tensor'}")
        return self

    def fill_(self, value: object) -> TensorSpec:
        """Return the same tensor: the contents of tensors are no part of a launch."""
        return self

    def new_empty(self, *size: int | Sequence[int], dtype: str = "", **where: object) -> TensorSpec:
        return _empty(*size, dtype=dtype or self.dtype)

    def element_size(self) -> int:
        """Return the bytes of a number. The types' names say their bits: bf16, i64, fp8e4nv."""
        bits = re.search(r"\d+", self.dtype)
        assert bits is not None
        return int(bits[0]) // 8

    def view(self, *size: int | Sequence[int]) -> TensorSpec:
        """Return the numbers in another shape, of which a length may be -1."""
        shape = [*_lengths(size)]
        known = -math.prod(shape) if -1 in shape else 0
        shape = [self.numel() // known if n == -1 else n for n in shape]
        return replace(self.contiguous(), shape=tuple(shape))

    def reshape(self, *size: int | Sequence[int]) -> TensorSpec:
        return self.view(*size)

    def to(self, dtype: str) -> TensorSpec:
        """Return the same tensor, as torch does for its own type; other types are refused."""
        if dtype != self.dtype:
            raise UnsupportedKernel(f"it converts a tensor of {self.dtype} to {dtype}")
        return self


# Triton's names of types of torch.
SHORT_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class Element(str):
    """An element type of torch, by Triton's short name."""

    __slots__ = ()

    @property
    def is_floating_point(self) -> bool:
        return self.startswith(("fp", "bf"))


@dataclass(frozen=True)
class TritonType:
    """A type of Triton, such as `tl.float32`, by the name that Triton gives it."""

    dtype: str


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel."""

    kernel: str
    arguments: Mapping[str, Any]  # by the kernel's parameter names; tensors are `TensorSpec`s
    grid: tuple[int, ...]
    options: Mapping[str, int | bool]  # num_warps, num_stages, launch_pdl


class Unknown:
    """A value that only a running engine knows. Code may pass it on but not depend on it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self._name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        # Called as a decorator: give back the function.
        if len(args) == 1 and not kwargs and inspect.isfunction(args[0]):
            return args[0]
        return Unknown(f"{self._name}(...)")

    def __getitem__(self, key: object) -> Unknown:
        return self

    def __or__(self, other: object) -> Unknown:
        return self

    __ror__ = __or__

    def __neg__(self) -> Unknown:
        return Unknown(f"-{self._name}")

    def _asked(self, *args: object) -> NoReturn:
        raise UnsupportedKernel(
            f"its launch depends on {self._name}, which is known only once a server runs"
        )

    __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _asked
    __lt__ = __le__ = __gt__ = __ge__ = _asked
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = _asked

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unknown):
            return self._name == other._name
        if isinstance(other, type):  # `typing` compares the parts of annotations
            return False
        return self._asked()


class Figure(Unknown):
    """A number of the card, which its target does not say.

    It may be compared, as some code does without a use for the answer, but nothing may depend on
    the answer.
    """

    def _compared(self, other: object) -> Unknown:
        return Unknown(f"a comparison with {self._name}")

    __lt__ = __le__ = __gt__ = __ge__ = _compared  # type: ignore[assignment]


class Namespace:
    """A module with some known names; the others are unknown."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        self._name, self._known = name, known

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._known[name] if name in self._known else Unknown(f"{self._name}.{name}")


class RecordedKernel:
    """A jitted function that records its launches.

    `heuristics` are the parameters of `triton.heuristics`, which follow from the arguments.
    `chosen` is added to each launch, as an autotuner adds its choice, and before the launcher's own
    constants, as a plugin puts it there; it may change in between.
    """

    def __init__(
        self,
        function: Callable[..., object],
        record: Callable[[KernelLaunch], None],
        heuristics: Mapping[str, Callable[[Mapping[str, Any]], object]] = MappingProxyType({}),
        chosen: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._name = function.__name__
        signature = inspect.signature(function).parameters
        self._parameters = tuple(signature)
        self._defaults = {name: p.default for name, p in signature.items()}
        self._record = record
        self._heuristics = heuristics
        self._chosen = chosen

    def __getitem__(
        self, grid: tuple[int, ...] | Callable[[Mapping[str, Any]], tuple[int, ...]]
    ) -> Callable[..., None]:
        def launch(*args: object, **kwargs: object) -> None:
            kwargs = {**kwargs, **self._chosen}
            arguments = dict(zip(self._parameters, args, strict=False))
            arguments |= {k: v for k, v in kwargs.items() if k in self._parameters}
            options = {
                k: v
                for k, v in kwargs.items()
                if k not in self._parameters and isinstance(v, int)  # all of CUDA's are
            }
            for name, follow in self._heuristics.items():  # a heuristic may use earlier results
                arguments[name] = follow(arguments)
            every = {**self._defaults, **arguments, **options}
            blocks = grid(every) if callable(grid) else grid
            self._record(KernelLaunch(self._name, arguments, tuple(blocks), options))

        return launch


@dataclass(frozen=True)
class AutotunerConfig:
    """A configuration of an autotuner: `triton.Config`."""

    kwargs: Mapping[str, int]
    num_warps: int = 4
    num_stages: int = 3

    def values(self) -> dict[str, int]:
        """Return all options that it adds to a launch."""
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages}


def stand_in_triton(record: Callable[[KernelLaunch], None]) -> Namespace:
    def jit(function: Callable[..., object] | None = None, **options: object) -> object:
        return RecordedKernel(function, record) if function else lambda f: RecordedKernel(f, record)

    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "int32"}
    types = {name: TritonType(own) for name, own in names.items()}
    return Namespace(
        "triton",
        {
            "jit": jit,
            "Config": AutotunerConfig,
            "autotune": lambda **options: lambda kernel: kernel,
            "cdiv": lambda a, b: -(-a // b),
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
            "language": Namespace("triton.language", types),
        },
    )


def stand_in_torch(target: Target) -> Namespace:
    cuda = {
        "is_available": _answering(True),
        "get_device_capability": _answering(target.capability),
    }
    if target.platform == HIP:
        properties = Namespace("a GPU's properties", {"gcnArchName": target.name})
        cuda["get_device_properties"] = _answering(properties)
    version = {platform: "" if platform == target.platform else None for platform in (CUDA, HIP)}
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int32": "i32"}
    dtypes |= {"int64": "i64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}
    dtypes |= {"float8_e4m3fnuz": "fp8e4b8"}
    dtypes |= {"float": "fp32", "half": "fp16", "int": "i32"}
    return Namespace(
        "torch",
        {
            "cuda": Namespace("torch.cuda", cuda),
            "version": Namespace("torch.version", version),
            "_dynamo": Namespace("torch._dynamo", {"is_compiling": _answering(False)}),
            "accelerator": Namespace(
                "torch.accelerator", {"device_index": _answering(contextlib.nullcontext())}
            ),
            "get_device_module": _answering(
                Namespace("a GPU's module", {"device": _answering(contextlib.nullcontext())})
            ),
            "Tensor": TensorSpec,
            "empty": _empty,
            "zeros": _empty,
            "full": lambda size, fill_value, **where: _empty(size, **where),
            "empty_like": _empty_like,
            "zeros_like": _empty_like,
            **{name: Element(short) for name, short in dtypes.items()},
        },
    )


def _empty(*size: int | Sequence[int], dtype: str, **where: object) -> TensorSpec:
    """Return the tensor of `torch.empty`, for a shape or for its numbers."""
    return TensorSpec("", tuple(_lengths(size)), dtype)


def _empty_like(tensor: TensorSpec, dtype: str = "", **where: object) -> TensorSpec:
    return TensorSpec("", tensor.shape, dtype or tensor.dtype)


def _lengths(size: Sequence[int | Sequence[int]]) -> Iterator[int]:
    """Yield the lengths of a shape that is given as a shape, or as its numbers."""
    for part in size:
        yield from (part,) if isinstance(part, int) else part


def platform_answers(target: Target) -> dict[str, Any]:
    """Return the answers of an engine's modules for the target, by name; other names are unknown.

    Variables of the environment have their defaults.
    """
    probes = platform_probes(target.platform)
    probes["is_gfx95_supported"] = target.name.startswith("gfx95")
    probes["is_gfx1250_supported"] = target.name == "gfx1250"
    probes["is_sm90_supported"] = target.is_sm(90)
    # Since PyTorch 2.4: whether torch.library.custom_op exists.
    probes["supports_custom_op"] = True
    facts = {probe.removesuffix("_supported"): says for probe, says in probes.items()}
    return {
        **{probe: _answering(says) for probe, says in probes.items()},
        "get_device_sm": _answering(target.sm),
        "get_device_core_count": _answering(Figure("the number of compute units")),
        "get_platform": _answering(Namespace("get_platform()", facts)),
        "get_bool_env_var": lambda name, default="false": default.lower() in ("true", "1"),
    }


def variable_answers(source: str) -> Namespace:
    """Answer for an engine's module of environment variables, by its source: no variable is set.

    sglang's `envs.NAME.get()` returns the constant with which the class of its variables declares
    NAME; a value that is computed, or that a server sets, is unknown.
    """
    constants = _declared_constants(source).items()
    fields = {name: Namespace(name, {"get": _answering(value)}) for name, value in constants}
    return Namespace("environ", {"envs": Namespace("envs", fields)})


@lru_cache(maxsize=8)
def _declared_constants(source: str) -> Mapping[str, object]:
    return {
        node.targets[0].id: node.value.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id.startswith("Env")
        and node.value.args
        and isinstance(node.value.args[0], ast.Constant)
    }


def _answering(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value
