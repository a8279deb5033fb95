"""Functions of an engine's source, compiled one by one with the definitions that they use.

The engine is not imported, and its source file is not run as a whole.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UnsupportedKernel


class Definitions:
    """Module-level definitions of a source file, compiled when they are needed.

    `known` has stand-ins for the names that come from other modules.
    """

    def __init__(
        self, tree: ast.Module, source: Path, engine: str, known: Mapping[str, object]
    ) -> None:
        self._namespace: dict[str, Any] = dict(known)
        self._source, self._engine = source, engine
        self._definitions: dict[str, ast.FunctionDef | ast.Assign] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._definitions[target.id] = node

    def function(self, name: str) -> Callable[..., Any]:
        """A function without its decorators. Raises UnsupportedKernel for an unknown name."""
        self._define(name, asked_by="the tuner")
        function: Callable[..., Any] = self._namespace[name]
        return function

    def _define(self, name: str, asked_by: str) -> None:
        if name in self._namespace or hasattr(builtins, name):
            return
        if name not in self._definitions:
            raise UnsupportedKernel(
                f"{self._engine}'s {self._source.name} has no {name!r}, which {asked_by} needs"
            )
        node = self._definitions[name]
        if isinstance(node, ast.FunctionDef):
            node = ast.FunctionDef(**{**vars(node), "decorator_list": []})
        self._namespace[name] = None  # stops the recursion if the definition uses its own name
        for used in _free_names(node):
            self._define(used, asked_by=name)
        # Annotations stay text, because they name types that are not lifted. (`annotations` is
        # the feature from this file's `from __future__` import.)
        code = compile(
            ast.Module(body=[node], type_ignores=[]),
            str(self._source),
            "exec",
            flags=annotations.compiler_flag,
            dont_inherit=True,
        )
        exec(code, self._namespace)  # noqa: S102 - running the engine's code is the purpose


def _free_names(node: ast.FunctionDef | ast.Assign) -> list[str]:
    roots: list[ast.AST] = [node.value] if isinstance(node, ast.Assign) else [*node.body]
    bound: set[str] = set()
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        roots += [d for d in (*arguments.defaults, *arguments.kw_defaults) if d is not None]
        bound = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names = [n for root in roots for n in ast.walk(root) if isinstance(n, ast.Name)]
    bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return sorted({n.id for n in names if isinstance(n.ctx, ast.Load)} - bound)
