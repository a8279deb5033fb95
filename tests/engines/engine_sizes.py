"""The sizes of an expert layer as an engine's own model class computes them from a config.json.

The expressions that the class hands to its fused-MoE layer are evaluated as they stand in the
release's source. `self.NAME` and local names are evaluated from their own assignments there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

WANTED = ("num_experts", "top_k", "hidden_size", "intermediate_size")


class _Zero:
    """A setting of a server where nobody set it: no redundant experts, nothing fused."""

    def __getattr__(self, name: str) -> _Zero:
        return self

    def __call__(self, *_: object, **__: object) -> _Zero:
        return self

    def __radd__(self, other: int) -> int:
        return other

    def __add__(self, other: int) -> int:
        return other

    def __bool__(self) -> bool:
        return False


class _Names(dict[str, Any]):
    """Names of a function: the config, builtins, and what the function assigns."""

    def __init__(self, owner: ast.AST, config: SimpleNamespace) -> None:
        super().__init__(config=config, getattr=getattr, int=int, isinstance=isinstance, list=list)
        self["self"] = _Self(owner, self)
        self._assigned = {
            target.id: node.value
            for node in ast.walk(owner)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def __missing__(self, name: str) -> object:
        value = self._assigned.pop(name, None)
        return _Zero() if value is None else self.value(value)

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401 (the engine's)
        return eval(compile(ast.Expression(node), "model", "eval"), {}, self)  # noqa: S307


class _Self:
    def __init__(self, owner: ast.AST, names: _Names) -> None:
        self._names = names
        self._set: dict[str, ast.expr] = {}
        for node in ast.walk(owner):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        self._set.setdefault(target.attr, node.value)

    def __getattr__(self, name: str) -> object:
        if name == "config":
            return self._names["config"]
        if name in self._set:
            return self._names.value(self._set.pop(name))
        return _Zero()


def engine_sizes(source: Path, config: dict[str, Any]) -> set[tuple[int, ...]]:
    """(experts, top_k, hidden size, columns) of each fused-MoE layer that a model's file makes.

    Calls whose values only another call of the file knows are left out.
    """
    found = set()
    for owner, call in _calls(source):
        names = _Names(owner, SimpleNamespace(**config))
        given = {word.arg: word.value for word in call.keywords}
        values = [given[name] for name in WANTED]
        try:
            sizes = [names.value(value) for value in values]
        except AttributeError:  # the class of another model in the same file
            continue
        if all(isinstance(size, int) for size in sizes):
            found.add(tuple(sizes))
    return found


@cache
def _calls(source: Path) -> list[tuple[ast.ClassDef, ast.Call]]:
    return list(_walk(ast.parse(source.read_text(encoding="utf-8"))))


def _walk(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.Call]]:
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef):
            for node in ast.walk(owner):
                if isinstance(node, ast.Call) and set(WANTED) <= {k.arg for k in node.keywords}:
                    yield owner, node
