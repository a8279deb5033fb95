"""Bind an argument to each kernel parameter, and specialise on it as Triton does.

A binding serves at compile time through `variant()` (types, specialisations, constants), and at
launch through its arguments.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from tuner.devices.target import Target
from tuner.errors import UnsupportedKernel
from tuner.kernels.lift import UNREADABLE_DEFAULT, Lifted, Parameter
from tuner.kernels.stand_ins import TensorSpec, TritonType
from tuner.problems.points import Candidate, Config

Plain = bool | int | float | str | None


@dataclass(frozen=True)
class Pointer:
    """A tensor; `dtype` is Triton's short name (bf16, fp8e4nv, u8, i32 ...).

    Tensors start on 16-byte boundaries, because engines' allocators align them so.
    """

    dtype: str
    operand: str = ""  # the launcher's name for it, if it differs from the parameter's name


@dataclass(frozen=True)
class Descriptor:
    """A TMA descriptor over a tensor, loaded in tiles of `block`."""

    dtype: str
    block: tuple[int, ...]


@dataclass(frozen=True)
class Integer:
    """A whole number known at launch."""

    value: int


@dataclass(frozen=True)
class Float:
    """A float32 known at launch; Triton never specialises on floats."""

    value: float


@dataclass(frozen=True)
class Constant:
    """A value known at compile time: None (absent), a bool, a number or a string."""

    value: Plain


@dataclass(frozen=True)
class TypeConstant:
    """A Triton type as a compile-time value, by its short name."""

    dtype: str


Argument = Pointer | Descriptor | Integer | Float | Constant | TypeConstant
ABSENT = Constant(None)


@dataclass(frozen=True)
class Variant:
    """Everything that decides a kernel's machine code besides its source and the architecture.

    Two launches with equal variants run the same compiled kernel.
    """

    function: str
    signature: Mapping[str, str]  # parameter -> Triton type, or "constexpr"
    constants: Mapping[str, Plain | dict[str, str]]  # parameter -> value; a type is {"dtype": name}
    divisible: tuple[str, ...]  # parameters known to be multiples of 16
    options: Mapping[str, int | bool]  # num_warps, num_stages ...

    @cached_property
    def key(self) -> str:
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "signature": dict(self.signature),
            "constants": dict(self.constants),
            "divisible": list(self.divisible),
            "options": dict(self.options),
        }

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Binding:
    """The arguments of all parameters of a kernel, in order, and the launch options."""

    function: str
    parameters: tuple[Parameter, ...]
    arguments: Mapping[str, Argument]
    options: Mapping[str, int | bool]

    def variant(self) -> Variant:
        """Specialise as Triton's own JIT does.

        An integer of 1 becomes a constant. Integers divisible by 16 and pointers are marked as
        divisible by 16. `do_not_specialize` turns both off.
        """
        signature: dict[str, str] = {}
        constants: dict[str, Plain | dict[str, str]] = {}
        divisible: list[str] = []
        for parameter in self.parameters:
            name, argument = parameter.name, self.arguments[parameter.name]
            one = isinstance(argument, Integer) and argument.value == 1 and parameter.specialize
            if isinstance(argument, Constant | TypeConstant) or parameter.constexpr or one:
                signature[name] = "constexpr"
                constants[name] = _constant(argument)
                continue
            signature[name] = _runtime_type(argument)
            aligned = isinstance(argument, Pointer) or (
                isinstance(argument, Integer) and argument.value % 16 == 0
            )
            if aligned and parameter.specialize:
                divisible.append(name)
        return Variant(self.function, signature, constants, tuple(divisible), dict(self.options))


def refuse_empty_tiles(kernel: str, config: Config) -> None:
    """Raise UnsupportedKernel for a tile without rows or columns, by which launchers divide."""
    for name, value in config.items():
        if name.startswith(("BLOCK_SIZE_", "GROUP_SIZE_")) and value < 1:
            raise UnsupportedKernel(f"{kernel} needs a {name} of at least 1, not {value}")


def bind(
    origin: str,
    function: str,
    parameters: tuple[Parameter, ...],
    known: Mapping[str, Argument],
    options: Mapping[str, int | bool],
) -> Binding:
    """Bind every parameter by name; a parameter that is not in `known` keeps its default.

    Raises UnsupportedKernel for a parameter without an argument and a default.
    """
    arguments: dict[str, Argument] = {}
    for parameter in parameters:
        if parameter.name in known:
            arguments[parameter.name] = known[parameter.name]
        elif parameter.required or parameter.default is UNREADABLE_DEFAULT:
            raise UnsupportedKernel(
                f"{origin}: {function} needs {parameter.name!r}, which nothing here gives it"
            )
        else:
            arguments[parameter.name] = Constant(cast(Plain, parameter.default))
    return Binding(function, parameters, arguments, options)


def argument_of(name: str, value: object, *, constant: bool = False) -> Argument:
    """Return the argument of a value that a launcher passed to a kernel (`KernelLaunch.arguments`).

    `constant`: the kernel's parameter is a tl.constexpr. Raises UnsupportedKernel.
    """
    if isinstance(value, TensorSpec):
        return Pointer(value.dtype, value.name)
    if isinstance(value, TritonType):
        return TypeConstant(value.dtype)
    if value is None or isinstance(value, bool | str):
        return Constant(value)
    if isinstance(value, int):
        return Constant(value) if constant else Integer(value)
    if isinstance(value, float):
        return Float(value)
    raise UnsupportedKernel(f"{name} is a {type(value).__name__}, which cannot be bound")


def _constant(argument: Argument) -> Plain | dict[str, str]:
    if isinstance(argument, TypeConstant):
        return {"dtype": argument.dtype}
    assert isinstance(argument, Constant | Integer | Float)
    return argument.value


def _runtime_type(argument: Argument) -> str:
    if isinstance(argument, Pointer):
        return f"*{argument.dtype}"
    if isinstance(argument, Descriptor):
        return f"tensordesc<{argument.dtype}[{', '.join(map(str, argument.block))}]>"
    if isinstance(argument, Float):
        return "fp32"
    assert isinstance(argument, Integer)
    return "i32" if -(2**31) <= argument.value < 2**31 else "i64"


class FamilyKernels(ABC):
    """An engine's kernels of a family, lifted as one text.

    All methods may raise UnsupportedKernel.
    """

    lifted: Lifted

    @abstractmethod
    def bound(self, problem: Any, candidate: Candidate, target: Target) -> Binding:  # noqa: ANN401
        """Return the first kernel that the engine launches with a candidate, and its arguments."""

    @property
    def hash(self) -> str:
        """Return the sha256 of the lifted source of all kernels."""
        return self.lifted.hash

    def binder(
        self,
        problem: Any,  # noqa: ANN401  # one of the family
        target: Target,
    ) -> Callable[[Candidate], tuple[Lifted, Binding]]:
        """Return `bound` as a function of a candidate, for the compiler."""
        return lambda candidate: (self.lifted, self.bound(problem, candidate, target))
