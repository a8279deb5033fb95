"""A binding's values at launch: what is given to a compiled kernel, or to a jitted one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from triton.language import dtype
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.kernels.binding import Binding, Descriptor, Pointer, TypeConstant


def launch_values(binding: Binding, tensors: Mapping[str, Tensor]) -> list[Any]:
    """A value for each of the kernel's parameters, in order.

    A pointer's tensor is looked up by its operand's name, or by the parameter's where it has none.
    """
    values: list[Any] = []
    for parameter in binding.parameters:
        argument = binding.arguments[parameter.name]
        if isinstance(argument, Pointer):
            values.append(tensors[argument.operand or parameter.name])
        elif isinstance(argument, Descriptor):
            tensor = tensors[parameter.name]
            block = list(argument.block)
            values.append(TensorDescriptor(tensor, tensor.shape, tensor.stride(), block))
        elif isinstance(argument, TypeConstant):
            values.append(dtype(argument.dtype))
        else:
            values.append(argument.value)
    return values
