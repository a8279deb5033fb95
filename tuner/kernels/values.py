"""Collect the values to launch a compiled or jitted kernel with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from triton.language import dtype

from tuner.kernels.binding import Binding, Descriptor, Pointer, TypeConstant


def launch_values(binding: Binding, tensors: Mapping[str, Tensor]) -> list[Any]:
    """Return a value for each of the kernel's parameters, in order.

    The tensor of a pointer is looked up by its operand, or else by the parameter's name.
    """
    values: list[Any] = []
    for parameter in binding.parameters:
        argument = binding.arguments[parameter.name]
        if isinstance(argument, Pointer):
            values.append(tensors[argument.operand or parameter.name])
        elif isinstance(argument, Descriptor):
            from triton.tools.tensor_descriptor import (  # noqa: PLC0415  # Triton 3.2 has none
                TensorDescriptor,
            )

            tensor = tensors[parameter.name]
            block = list(argument.block)
            values.append(TensorDescriptor(tensor, tensor.shape, tensor.stride(), block))
        elif isinstance(argument, TypeConstant):
            values.append(dtype(argument.dtype))
        else:
            values.append(argument.value)
    return values
