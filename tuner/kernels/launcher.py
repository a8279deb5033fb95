"""Record an engine's kernel launches, without a GPU and without torch.

An engine decides in Python which kernel it launches, with which constants and arguments. This
module runs the engine's source file with stand-ins for everything that it imports (`stand_ins`):
tensors are shapes, and kernels record how they are launched. So the launches are exact for every
engine version. A question that no stand-in can answer ends in UnsupportedKernel, never in a guess.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tuner.devices.target import Target
from tuner.errors import UnsupportedKernel
from tuner.kernels.definitions import unsupported_if_it_fails
from tuner.kernels.stand_ins import (
    KernelLaunch,
    Namespace,
    TensorSpec,
    Unknown,
    platform_answers,
    stand_in_torch,
    stand_in_triton,
    variable_answers,
)

_VARIABLES = "environ"  # the module in which sglang declares its environment variables

__all__ = ["Followed", "KernelLaunch", "Launcher", "TensorSpec"]


@dataclass(frozen=True)
class Followed:
    """A call of an engine's function."""

    result: object
    # Tensors that the function allocates have no name; the result may be one of them.
    launches: list[KernelLaunch]


@dataclass
class Launcher:
    """An engine's source file, run for a target."""

    source: Path
    root: Path  # the engine's package folder
    origin: str  # e.g. "sglang 0.5.16"; for messages
    target: Target
    _launches: list[KernelLaunch] = field(default_factory=list)
    _modules: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def run(self, function: str, arguments: Mapping[str, Any]) -> list[KernelLaunch]:
        """Return the launches of `function`, called with the `arguments` that it has as parameters.

        Raises UnsupportedKernel if the engine has no such function, if an argument is missing, or
        if the launch depends on a value that only a running engine knows.
        """
        return self.follow(function, arguments).launches

    def follow(
        self,
        function: str,
        arguments: Mapping[str, Any],
        instead: Mapping[str, object] | None = None,
    ) -> Followed:
        """Run a function as `run` does; return its result too.

        `instead` has values for names of the source file while the function runs, such as another
        loader of config files. Raises UnsupportedKernel too if the file lacks such a name.
        """
        call = self._function(function)
        with unsupported_if_it_fails(f"{self.origin}: {function}"), self._replaced(instead or {}):
            taken = self._arguments_of(function, call, arguments)
            self._launches.clear()
            if hasattr(call, "cache_clear"):  # its last answer was for other stand-ins
                call.cache_clear()
            result = call(**taken)
        return Followed(result, list(self._launches))

    def parameters(self, function: str) -> tuple[str, ...]:
        """Return the names of a function's parameters. Raises UnsupportedKernel."""
        call = self._function(function)
        with unsupported_if_it_fails(f"{self.origin}: {function}"):
            return tuple(inspect.signature(call).parameters)

    def has(self, name: str) -> bool:
        """Say whether the source file defines a name. Raises UnsupportedKernel if it
        cannot be run.
        """
        with unsupported_if_it_fails(f"{self.origin}: {self.source.name}"):
            return name in self._execute(self.source)

    @contextlib.contextmanager
    def _replaced(self, instead: Mapping[str, object]) -> Iterator[None]:
        space = self._modules[self.source]
        known = {name: space[name] for name in instead if name in space}
        for name in instead:
            if name not in space and name not in vars(builtins):
                raise UnsupportedKernel(f"{self.origin} has no {name} in {self.source.name}")
        space.update(instead)
        try:
            yield
        finally:
            for name in instead:
                del space[name]
            space.update(known)

    def _function(self, name: str) -> Callable[..., object]:
        with unsupported_if_it_fails(f"{self.origin}: {self.source.name}"):
            namespace = self._execute(self.source)
        if name not in namespace:
            raise UnsupportedKernel(f"{self.origin} has no {name} in {self.source.name}")
        found: Callable[..., object] = namespace[name]
        return found

    def _arguments_of(
        self, function: str, call: Callable[..., object], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        taken = {}
        for name, parameter in inspect.signature(call).parameters.items():
            if name in known:
                taken[name] = known[name]
            elif parameter.default is inspect.Parameter.empty:
                raise UnsupportedKernel(
                    f"{self.origin}: {function} needs {name!r}, which this version cannot give"
                )
        return taken

    def _execute(self, path: Path) -> dict[str, Any]:
        if path not in self._modules:
            space: dict[str, Any] = {
                "__builtins__": {**vars(builtins), "__import__": self._import},
                "__name__": path.stem,
                "__file__": str(path),
            }
            before = dict(self._modules)
            self._modules[path] = space  # before it runs, because modules may import each other
            try:
                exec(_compiled(path.read_text(encoding="utf-8"), str(path)), space)  # noqa: S102
            except BaseException:
                self._modules = before  # drop it, and the modules that imported it half-run
                raise
        return self._modules[path]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 (the protocol's own names)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        top = name.partition(".")[0]
        if level == 0 and name == "logging":
            return _silent_logging()
        if level == 0 and top in sys.stdlib_module_names:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if top == "triton":
            return self._import_triton(name, fromlist or ())
        if top == "torch":
            return stand_in_torch(self.target) if name == "torch" else Unknown(name)
        sibling = self.source.parent / f"{name.rpartition('.')[2]}.py"
        file = self.root.joinpath(*name.split(".")[1:]).with_suffix(".py")
        if top == self.root.name and sibling == file:
            return Namespace(name, self._execute(sibling))
        if top == self.root.name and file.stem == _VARIABLES and file.is_file():
            return variable_answers(file.read_text(encoding="utf-8"))
        return Namespace(name, platform_answers(self.target))

    def _import_triton(self, name: str, fromlist: Sequence[str]) -> object:
        package = stand_in_triton(self._launches.append)
        # `import triton.language as tl` asks the package for its `language`.
        if name == "triton" or (name == "triton.language" and not fromlist):
            return package
        return package.language if name == "triton.language" else Unknown(name)


@lru_cache(maxsize=32)
def _compiled(text: str, path: str) -> CodeType:
    """Compile a source file once: a command asks launchers of the same file for many problems."""
    return compile(text, path, "exec", dont_inherit=True)


def _silent_logging() -> ModuleType:
    """Return a `logging` whose loggers are silent: an engine's warnings are for its own servers."""
    module = ModuleType("logging")
    vars(module).update(vars(logging))
    silent = logging.Logger("engine")
    silent.disabled = True
    module.getLogger = lambda name=None: silent  # type: ignore[attr-defined]
    return module
