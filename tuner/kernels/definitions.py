"""Compile single functions of an engine's source, with the definitions that they use.

The engine is not imported, and no source file is run as a whole. So only the definitions that a
function really uses must be understood.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tuner.errors import UnsupportedKernel
from tuner.kernels.source import bound_name, full_name, module_files
from tuner.kernels.stand_ins import KernelLaunch, RecordedKernel

_Definition = ast.FunctionDef | ast.Assign


class Definitions:
    """The functions of a source file, and the definitions that they use in the engine's other
    files.

    `known` has stand-ins for names in all of these files. A jitted function becomes a stand-in too:
    `record` takes its launches, to each of which `chosen` is added.
    """

    def __init__(
        self,
        source: Path,
        root: Path,
        engine: str,
        known: Mapping[str, object],
        record: Callable[[KernelLaunch], None] = lambda launch: None,
        chosen: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._source, self._root, self._engine = source, root, engine
        self._known, self._record = known, record
        self._chosen = chosen
        self._files: dict[Path, _File] = {}
        self._parameters: dict[str, Mapping[str, inspect.Parameter]] = {}

    def call(self, name: str, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401 (the engine's)
        """Call a function with the arguments that this version's function has.

        Raises UnsupportedKernel if the function or a definition that it uses is not known, if it
        has another required parameter, or if it fails.
        """
        function: Callable[..., Any] = self._define(self._file(self._source), name, "the tuner")
        parameters = self.parameters(name)
        for parameter in parameters.values():
            if parameter.name not in arguments and parameter.default is parameter.empty:
                raise UnsupportedKernel(
                    f"{self._engine}'s {name} has an unknown parameter {parameter.name!r}"
                )
        with unsupported_if_it_fails(f"{self._engine}'s {name}"):
            return function(**{n: arguments[n] for n in parameters if n in arguments})

    def parameters(self, name: str) -> Mapping[str, inspect.Parameter]:
        """Return a function's parameters by name. Raises UnsupportedKernel for an unknown name."""
        if name not in self._parameters:  # a signature takes longer than most of the calls
            function = self._define(self._file(self._source), name, "the tuner")
            self._parameters[name] = inspect.signature(function).parameters
        return self._parameters[name]

    def has(self, name: str) -> bool:
        """Say whether the source file defines a name."""
        return name in self._file(self._source).definitions

    def autotuned(self, kernel: str) -> list[dict[str, int]]:
        """Return the configurations of a kernel's `triton.autotune`; none without an autotuner.

        Raises UnsupportedKernel if the file has no such kernel, or the list is not known.
        """
        file = self._file(self._source)
        node = file.definitions.get(kernel)
        if not isinstance(node, ast.FunctionDef):
            raise UnsupportedKernel(f"{self._engine} has no kernel {kernel}")
        for decorator in (*node.decorator_list, *file.wrappers(kernel)):
            match decorator:
                case ast.Call(func=function, keywords=keywords) if (
                    ast.unparse(function) == "triton.autotune"
                ):
                    listed = next((k.value for k in keywords if k.arg == "configs"), None)
                    if listed is None:
                        raise UnsupportedKernel(f"{self._engine}: {kernel} names no configs")
                    with unsupported_if_it_fails(f"{self._engine}'s {kernel}"):
                        return [one.values() for one in self._evaluate(file, listed, kernel)]
        return []

    def _evaluate(self, file: _File, value: ast.expr, asked_by: str) -> Any:  # noqa: ANN401
        """Evaluate an expression of a file, whose names are followed."""
        for used in _free_names(value):
            self._define(file, used, asked_by=asked_by)
        code = compile(ast.Expression(value), str(file.path), "eval")
        return eval(code, file.space)  # noqa: S307 - running the engine's code is the purpose

    def _file(self, path: Path) -> _File:
        if path not in self._files:
            self._files[path] = _File(path, self._root, self._engine, dict(self._known))
        return self._files[path]

    def _define(self, file: _File, name: str, asked_by: str) -> Any:  # noqa: ANN401
        if name in file.space:
            return file.space[name]
        if name in file.definitions:
            return self._compile(file, name)
        if name in file.imports:
            file.space[name] = self._import(file, name, asked_by)
            return file.space[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise UnsupportedKernel(
            f"{self._engine}'s {file.path.name} has no {name!r}, which {asked_by} needs"
        )

    def _compile(self, file: _File, name: str) -> Any:  # noqa: ANN401
        node = file.definitions[name]
        jitted = isinstance(node, ast.FunctionDef) and _is_jitted(node)
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.FunctionDef):
            body = [one for one in node.body if not file.imports_from_engine(one)]
            node = ast.FunctionDef(**{**vars(node), "body": body, "decorator_list": []})
        file.space[name] = None  # stops the recursion if the definition uses its own name
        for used in () if jitted else _free_names(node):
            self._define(file, used, asked_by=name)
        # Annotations stay text, because they name types that are not lifted. (`annotations` is
        # the feature from this file's `from __future__` import.)
        code = compile(
            ast.Module(body=[node], type_ignores=[]),
            str(file.path),
            "exec",
            flags=annotations.compiler_flag,
            dont_inherit=True,
        )
        with unsupported_if_it_fails(f"{self._engine}'s {name}"):
            exec(code, file.space)  # noqa: S102 - running the engine's code is the purpose
            if jitted:
                heuristics = self._heuristics(file, name, decorators)
                kernel = file.space[name], self._record, heuristics, self._chosen
                file.space[name] = RecordedKernel(*kernel)
        return file.space[name]

    def _heuristics(
        self, file: _File, name: str, decorators: Sequence[ast.expr]
    ) -> dict[str, Callable[[Mapping[str, Any]], object]]:
        """Return the parameters that a kernel's `triton.heuristics` decorators set at launch.

        Triton calls the outermost decorator first.
        """
        found: dict[str, Callable[[Mapping[str, Any]], object]] = {}
        for decorator in decorators:
            match decorator:
                case ast.Call(func=function, args=[values]) if (
                    ast.unparse(function) == "triton.heuristics"
                ):
                    found |= self._evaluate(file, values, name)
        return found

    def _import(self, file: _File, name: str, asked_by: str) -> Any:  # noqa: ANN401
        module, own = file.imports[name]
        if module.partition(".")[0] in sys.stdlib_module_names:
            found = import_module(module)
            return getattr(found, own) if own else found
        stem = self._root.parent.joinpath(*module.split("."))
        path = next(module_files(stem), None) if stem.is_relative_to(self._root) else None
        if own and path is not None:
            return self._define(self._file(path), own, asked_by)
        raise UnsupportedKernel(
            f"{self._engine}'s {file.path.name} takes {name!r} from {module}, and {asked_by} "
            "needs it"
        )


class _File:
    """A source file's definitions and imports, and its compiled definitions."""

    def __init__(self, path: Path, root: Path, engine: str, space: dict[str, Any]) -> None:
        self.path, self.space, self._root = path, space, root
        self.definitions: dict[str, _Definition] = {}
        # name -> (module, the name there; "" for the module itself)
        self.imports: dict[str, tuple[str, str]] = {}
        for node in _tree(path, engine).body:
            if isinstance(node, ast.FunctionDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                self.definitions |= dict.fromkeys(names, node)
            elif isinstance(node, ast.ImportFrom):
                self._take(node)
            elif isinstance(node, ast.Import):
                for name in map(bound_name, node.names):
                    self.imports[name] = full_name(node, name), ""

    def _take(self, node: ast.ImportFrom) -> None:
        module = _absolute(node, self.path, self._root)
        for alias in node.names:
            self.imports[bound_name(alias)] = module, alias.name

    def imports_from_engine(self, node: ast.stmt) -> bool:
        """Take the names if a function's statement imports from the engine; say whether it does."""
        if not isinstance(node, ast.ImportFrom):
            return False
        module = _absolute(node, self.path, self._root)
        if module.partition(".")[0] != self._root.name:
            return False
        self._take(node)
        return True

    def wrappers(self, kernel: str) -> list[ast.expr]:
        """Return the functions that the file calls with only a kernel, as a decorator."""
        calls = [
            node.value
            for node in self.definitions.values()
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        ]
        return [c.func for c in calls if [ast.unparse(one) for one in c.args] == [kernel]]


def _absolute(node: ast.ImportFrom, path: Path, root: Path) -> str:
    """Return the full name of the module that a file imports from."""
    own = node.module or ""
    if not node.level:
        return own
    folders = path.relative_to(root.parent).parts[: -node.level]
    return ".".join((*folders, own) if own else folders)


@lru_cache(maxsize=16)  # engines' files are long, and a run asks for their functions many times
def _tree(path: Path, engine: str) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UnsupportedKernel(f"{engine}: cannot read {path}: {error}") from None


def _is_jitted(node: ast.FunctionDef) -> bool:
    return any("jit" in ast.unparse(d).split("(")[0].split(".") for d in node.decorator_list)


def _free_names(node: _Definition | ast.expr) -> list[str]:
    roots: list[ast.AST] = [node.value if isinstance(node, ast.Assign) else node]
    bound: set[str] = set()
    if isinstance(node, ast.FunctionDef):
        roots = [*node.body]
        roots += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        bound = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    inner = [n for root in roots for n in ast.walk(root)]
    bound |= {n.arg for n in inner if isinstance(n, ast.arg)}  # of lambdas and nested functions
    bound |= {n.name for n in inner if isinstance(n, ast.FunctionDef)}
    names = [n for n in inner if isinstance(n, ast.Name)]
    bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    bound -= {name for n in inner if isinstance(n, ast.Global) for name in n.names}
    return sorted({n.id for n in names if isinstance(n.ctx, ast.Load)} - bound)


@contextlib.contextmanager
def unsupported_if_it_fails(what: str) -> Iterator[None]:
    """Turn any error of an engine's code into UnsupportedKernel, which names `what` and
    the reason.
    """
    try:
        yield
    except UnsupportedKernel:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnsupportedKernel(f"{what} cannot be followed ({reason})") from None
