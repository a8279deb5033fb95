"""What an engine's source asks about the place where it runs, answered for lifted kernels.

They run where Triton is, on a known platform, and none of the engine's environment variables is
set there. Everything else that an expression asks for has no answer.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from tuner.devices.target import CUDA, HIP

# Platforms that an engine asks for: is_cuda(), current_platform.is_rocm() ...
_PLATFORMS = (CUDA, HIP, "cpu", "npu", "xpu", "musa")


# Constants of modules that ask the card, with the probe that says the same of all cards for which
# kernels with them are lifted: NVIDIA's have TF32 from Ampere on.
_CONSTANTS = {"is_tf32_supported": "is_cuda"}


class _Unknown(Enum):
    UNKNOWN = "unknown"


UNKNOWN = _Unknown.UNKNOWN

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


def platform_probes(backend: str) -> dict[str, bool]:
    """The answers of an engine's platform probes on a backend, by their names."""
    answers = {f"is_{platform}": platform == backend for platform in _PLATFORMS}
    answers |= {"is_rocm": backend == HIP, "is_cuda_alike": backend in (CUDA, HIP)}
    if backend == HIP:  # the answers of these depend on the card
        return answers
    return {**answers, "is_gfx942_supported": False, "is_gfx95_supported": False}


class Evaluator:
    """Evaluates expressions. `value_of` is asked for what a name stands for, or UNKNOWN."""

    def __init__(self, probes: Mapping[str, bool], value_of: Callable[[str], object]) -> None:
        self._probes, self._value_of = probes, value_of

    def value(self, node: ast.expr) -> object:
        """The value of an expression, or UNKNOWN."""
        if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Set):
            return _literal(node)
        answer = self._answer(node)
        if answer is not UNKNOWN:
            return answer
        if isinstance(node, ast.Name):
            return self._value_of(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.value(node.operand)
            return UNKNOWN if value is UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            return self._joined(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node)
        return UNKNOWN

    def asks(self, node: ast.expr) -> bool:
        """Whether an expression, or a part of it, is a question that has an answer here."""
        return any(
            isinstance(part, ast.expr) and self._answer(part) is not UNKNOWN
            for part in ast.walk(node)
        )

    def _joined(self, node: ast.BoolOp) -> object:
        """`and` is false where one part is, `or` true, whether or not the others are known."""
        decides = isinstance(node.op, ast.Or)
        values = [self.value(part) for part in node.values]
        for value in values:
            if value is not UNKNOWN and bool(value) is decides:
                return value
        return UNKNOWN if UNKNOWN in values else values[-1]

    def _compared(self, node: ast.Compare) -> object:
        left, right = self.value(node.left), self.value(node.comparators[0])
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is None or UNKNOWN in (left, right):
            return UNKNOWN
        try:
            return compare(left, right)
        except TypeError:
            return UNKNOWN

    def _answer(self, node: ast.expr) -> object:
        """The answer to a question about the place; UNKNOWN for any other expression."""
        if isinstance(node, ast.Name):
            if node.id in _CONSTANTS:
                return self._probes.get(_CONSTANTS[node.id], UNKNOWN)
            return True if _asks_for_triton(node.id) else UNKNOWN
        if not isinstance(node, ast.Call):
            return UNKNOWN
        function = ast.unparse(node.func)
        last = function.rpartition(".")[2]
        if last in self._probes:
            return self._probes[last]
        if _asks_for_triton(last):
            return True
        if function.endswith("environ.get") or last == "getenv":
            return self.value(node.args[1]) if len(node.args) > 1 else None
        return UNKNOWN


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def _asks_for_triton(name: str) -> bool:
    return name.strip("_").lower() == "has_triton"


class ConditionFolder(ast.NodeTransformer):
    """Replaces each question whose answer is known by the answer."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.count = 0  # how many were replaced

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401  # as its base has it
        """Visit a node; called for each one."""
        if isinstance(node, ast.expr) and self._evaluator.asks(node):
            value = self._evaluator.value(node)
            if value is None or isinstance(value, bool | int | str):
                self.count += 1
                return ast.Constant(value)
        return self.generic_visit(node)
