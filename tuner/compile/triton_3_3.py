"""Give constants to Triton 3.3 and later: as a part of a kernel's signature."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from triton import JITFunction
from triton.compiler import ASTSource, CompiledKernel


def ast_source(
    function: JITFunction,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    divisible: Collection[str],
) -> ASTSource:
    """Return a variant for `triton.compile`; `signature` and `divisible` are as in `Variant`."""
    place = function.arg_names.index
    values = {(place(name),): value for name, value in constants.items()}
    attributes = {(place(name),): [["tt.divisibility", 16]] for name in divisible}
    return ASTSource(function, signature, values, attributes)


def launch_arguments(kernel: CompiledKernel, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values that its launcher takes: a value for each parameter."""
    return values
