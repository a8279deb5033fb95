"""Give constants to Triton 3.1 and 3.2: apart from a kernel's signature."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from triton import JITFunction
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.compiler import AttrsDescriptor


def ast_source(
    function: JITFunction,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    divisible: Collection[str],
) -> ASTSource:
    """Return a variant for `triton.compile`; `signature` and `divisible` are as in `Variant`."""
    places = [function.arg_names.index(name) for name in divisible]
    if hasattr(AttrsDescriptor, "from_hints"):  # 3.2
        attributes = AttrsDescriptor.from_hints(dict.fromkeys(places, 16))
    else:
        attributes = AttrsDescriptor(divisible_by_16=set(places), equal_to_1=set())
    runtime = {name: kind for name, kind in signature.items() if name not in constants}
    return ASTSource(function, runtime, dict(constants), attributes)


def launch_arguments(kernel: CompiledKernel, values: Sequence[Any]) -> list[Any]:
    """Return the values that its launcher takes: all but constants."""
    source = kernel.src
    pairs = zip(source.fn.arg_names, values, strict=True)
    return [value for name, value in pairs if name in source.signature]
