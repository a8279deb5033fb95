"""What an engine's variables of the environment are where nobody sets them, as its source says."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from tuner.kernels.stand_ins import Unknown


class Unset:
    """An object with a variable for each attribute. A variable's `get` gives its default."""

    def __init__(self, name: str, defaults: Mapping[str, object]) -> None:
        self._name, self._defaults = name, defaults

    def __getattr__(self, variable: str) -> SimpleNamespace:
        default = self._defaults.get(variable, Unknown(f"{self._name}.{variable}.get(...)"))
        return SimpleNamespace(get=lambda: default)


def unset_variables(file: Path, module: str) -> dict[str, Unset]:
    """The objects of variables in an engine's module, by name: `envs = Envs()`, where the class
    says `NAME = EnvBool(True)`. A default that is computed is unknown.
    """
    return {name: Unset(f"{module}.{name}", found) for name, found in _defaults(file).items()}


@lru_cache(maxsize=32)
def _defaults(file: Path) -> dict[str, dict[str, object]]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {one.name: _variables(one) for one in tree.body if isinstance(one, ast.ClassDef)}
    return {
        node.targets[0].id: classes[node.value.func.id]
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id in classes
    }


def _variables(one: ast.ClassDef) -> dict[str, object]:
    return {
        node.targets[0].id: node.value.args[0].value
        for node in one.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and node.value.args
        and isinstance(node.value.args[0], ast.Constant)
    }
