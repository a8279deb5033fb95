"""Run an engine's default heuristic, lifted out of its source.

Only `get_default_config` and the definitions that it uses are compiled. The engine is not imported.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

from tuner.devices.table import Device
from tuner.devices.target import HIP
from tuner.errors import UnsupportedKernel

FUNCTION = "get_default_config"


def default_heuristic(
    tree: ast.Module, source: Path, engine: str, device: Device
) -> Callable[[Mapping[str, object]], dict[str, int]]:
    """The engine's heuristic on a device.

    The returned function takes a mapping of arguments and passes on the ones that this version's
    heuristic has. Raises UnsupportedKernel for an unknown name or parameter.
    """
    lifted = _Lifted(tree, source, engine, device)
    function = lifted.function(FUNCTION)
    parameters = inspect.signature(function).parameters

    def run(arguments: Mapping[str, object]) -> dict[str, int]:
        for name, parameter in parameters.items():
            if name not in arguments and parameter.default is parameter.empty:
                raise UnsupportedKernel(f"{engine}'s {FUNCTION} has an unknown parameter {name!r}")
        try:
            config: dict[str, int] = function(
                **{name: arguments[name] for name in parameters if name in arguments}
            )
        except AttributeError as error:  # a flag that the stand-ins in `_Lifted` do not have
            raise UnsupportedKernel(f"{engine}'s {FUNCTION} reads unknown state: {error}") from None
        return config

    return run


class _Lifted:
    """Module-level definitions of a source file, compiled when they are needed."""

    def __init__(self, tree: ast.Module, source: Path, engine: str, device: Device) -> None:
        flags = SimpleNamespace(enable_deterministic_inference=False)
        settings = SimpleNamespace(enable_deterministic_inference=False, deterministic=flags)
        # Stand-ins for the names from other modules, for the device and default flags.
        self._namespace: dict[str, object] = {
            "_is_hip": device.target.backend == HIP,
            "is_hip": lambda: device.target.backend == HIP,  # 0.4.3 binds it to another name
            "_get_cuda_shared_memory_per_block_optin": lambda: device.shared_optin_bytes,
            "get_server_args": lambda: settings,
            "get_global_server_args": lambda: settings,
            "get_exec": lambda: settings,
        }
        self._source, self._engine = source, engine
        self._definitions: dict[str, ast.FunctionDef | ast.Assign] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                self._definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._definitions[target.id] = node

    def function(self, name: str) -> Callable[..., dict[str, int]]:
        self._define(name, asked_by="the tuner")
        function: Callable[..., dict[str, int]] = self._namespace[name]  # type: ignore[assignment]
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
