"""How Triton 3.3 and later take a kernel's constants: as a part of its signature."""

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
    """A variant for `triton.compile`; `signature` and `divisible` are as in `Variant`."""
    place = function.arg_names.index
    values = {(place(name),): value for name, value in constants.items()}
    attributes = {(place(name),): [["tt.divisibility", 16]] for name in divisible}
    return ASTSource(function, signature, values, attributes)


def launch_arguments(kernel: CompiledKernel, values: Sequence[Any]) -> Sequence[Any]:
    """The values that its launcher takes, out of one for each parameter: all of them."""
    return values
