"""Copy jitted kernels out of an engine's source without importing the engine.

A `@triton.jit` function may use other jitted functions, module constants and imports. The lifted
text holds the function and everything that it uses, word for word, and imports only triton and the
standard library. This text is compiled, measured and hashed.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tuner.devices.target import CUDA
from tuner.errors import UnsupportedKernel, did_you_mean
from tuner.kernels.source import (
    Assignment,
    EngineSource,
    Import,
    SourceModule,
    bindings,
    bound_name,
    compiler_options,
    digest_of,
    full_name,
    names_read,
    platform_probes,
)

_LIFTED_IMPORTS = ("triton", "math", "packaging")  # packages that the text may import
NO_DEFAULT = object()
UNREADABLE_DEFAULT = object()  # there is a default, but it is not a plain value


def free_names(node: ast.FunctionDef) -> Iterator[str]:
    """Yield the names that a jitted function reads from its module."""
    local = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    local |= {n.id for n in stores}
    parts: list[ast.AST] = [
        compiler_options(node.decorator_list[-1]),
        *node.args.defaults,
        *node.body,
    ]
    for part in parts:
        for name in names_read(part):
            if name not in local:
                yield name


@dataclass(frozen=True)
class Parameter:
    """A parameter of a jitted function."""

    name: str
    constexpr: bool = False
    default: object = NO_DEFAULT
    specialize: bool = True  # False if `do_not_specialize` names it

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT


@dataclass(frozen=True)
class Lifted:
    """The source code of lifted kernels. It needs only triton, not the engine."""

    origin: str  # e.g. "sglang 0.5.16"; for messages
    text: str
    functions: dict[str, tuple[Parameter, ...]]

    @property
    def hash(self) -> str:
        """Return the sha256 of the text: the kernels' identity in caches and stores."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def parameters(self, function: str) -> tuple[Parameter, ...]:
        """Return a kernel's parameters. Raises UnsupportedKernel if the engine has no
        such kernel.
        """
        if function not in self.functions:
            raise UnsupportedKernel(f"{self.origin} has no kernel {function}")
        return self.functions[function]

    def write(self, folder: Path) -> Path:
        """Write the text to a file under `folder`, named by its hash. Safe between processes."""
        path = folder / f"lifted_{self.hash}.py"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                whole = Path(scratch, path.name)
                whole.write_text(self.text)
                whole.replace(path)
        return path


# Lifted kernels by what was asked for, each with a digest of each file that was read for them.
_LIFTED: dict[tuple[object, ...], tuple[Lifted, Mapping[Path, bytes]]] = {}


def load_lifted(path: Path) -> ModuleType:
    """Import a file that `Lifted.write` made. Imports triton."""
    name = path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def lift(
    source: Path, functions: Sequence[str], root: Path, origin: str, platform: str = CUDA
) -> Lifted:
    """Lift the `functions` that `source` defines, with everything that they use.

    `root` is the engine's package folder, where its own imports are looked up. Platform probes are
    answered for `platform` ("cuda" or "hip"). Raises UnsupportedKernel if `source` has none of the
    functions, or if a function uses a definition that cannot be lifted.
    """
    return lift_files({source: functions}, root, origin, platform)


def lift_files(
    files: Mapping[Path, Sequence[str]], root: Path, origin: str, platform: str = CUDA
) -> Lifted:
    """Lift functions of several source files, as `lift` does.

    A run asks for the same kernels several times. They are lifted again only if a file from which
    they were lifted has changed since.
    """
    functions = tuple((path, *names) for path, names in files.items())
    asked = (root, origin, platform, functions)
    if known := _LIFTED.get(asked):  # in one look: other threads lift, too
        lifted, read = known
        if all(digest_of(path) == digest for path, digest in read.items()):
            return lifted
    source = EngineSource(root, origin, platform_probes(platform))
    lifted = lift_from(source, files)
    if len(_LIFTED) >= 64:  # more than a command's, less than the tests'
        _LIFTED.clear()
    _LIFTED[asked] = lifted, source.digests()
    return lifted


def lift_from(engine: EngineSource, files: Mapping[Path, Sequence[str]]) -> Lifted:
    """Lift as `lift_files` does, from source that may have been read already."""
    origin = engine.origin
    lifter = _Lifter(engine)
    parameters: dict[str, tuple[Parameter, ...]] = {}
    for source, functions in files.items():
        module = engine.module(source)
        kernels = engine.kernels(module)
        present = [name for name in functions if name in kernels]
        if not present:
            near = did_you_mean(functions[0], kernels)
            raise UnsupportedKernel(f"{origin} has no kernel {functions[0]} in {source.name}{near}")
        for name in present:
            lifter.take(module, name)
            parameters[name] = _parameters(kernels[name], origin)
    return Lifted(origin, lifter.text(), parameters)


class _Lifter:
    def __init__(self, source: EngineSource) -> None:
        self.source, self.origin = source, source.origin
        self.import_lines: set[str] = set()
        self.pieces: dict[str, str] = {}  # name -> text, in an order that defines before it uses
        # name -> the file that defines it, or the full name of an import from elsewhere
        self.meanings: dict[str, Path | str] = {}

    def take(self, module: SourceModule, name: str) -> None:
        """Add a name's definition in a file to the text, behind everything that it uses."""
        node = self.source.binding(module, name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._take_import(module, name, node)
        elif node is None and hasattr(builtins, name):
            self._is_new(name, "builtins")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if self._is_new(name, module.path):
                self._take_assign(module, name, node)
        elif isinstance(node, ast.If):
            if self._is_new(name, module.path):
                self._take_if(module, name, node)
        elif self.source.is_jitted(node, module):
            if self._is_new(name, module.path):
                self._take_all(module, free_names(node))
                self.pieces[name] = module.kernel(node)
        else:
            raise UnsupportedKernel(f"{self.origin}: cannot lift {name!r} of {module.path.name}")

    def _take_all(self, module: SourceModule, names: Iterable[str]) -> None:
        for name in names:
            self.take(module, name)

    def _is_new(self, name: str, meaning: Path | str) -> bool:
        """Say whether `name` is new. Raises UnsupportedKernel if it has another meaning already."""
        if name not in self.meanings:
            self.meanings[name] = meaning
            return True
        if self.meanings[name] != meaning:
            raise UnsupportedKernel(f"{self.origin}: two kernels use different {name!r}")
        return False

    def _take_assign(self, module: SourceModule, name: str, node: Assignment) -> None:
        answered = self.source.answered(module, node)
        assert answered.value is not None
        used = names_read(answered.value)
        if name in used:
            raise UnsupportedKernel(f"{self.origin}: {module.path.name} binds {name!r} twice")
        self._take_all(module, used)
        same = answered is node
        self.pieces[name] = module.segment(node) if same else f"{ast.unparse(answered)}\n"

    def _take_if(self, module: SourceModule, name: str, node: ast.If) -> None:
        """Take a whole `if`. Its test has no answer here, but may have an answer beside Triton."""
        own = bindings([node])
        for other in own.keys() - {name}:
            if not self._is_new(other, module.path):
                raise UnsupportedKernel(f"{self.origin}: {module.path.name} binds {other!r} twice")
        self._take_all(module, (used for used in self._uses(module, node) if used not in own))
        self.pieces[name] = module.segment(node)

    def _uses(self, module: SourceModule, node: ast.If) -> Iterator[str]:
        yield from names_read(node.test)
        for part in (*node.body, *node.orelse):
            if isinstance(part, ast.If):
                yield from self._uses(module, part)
            elif self.source.is_jitted(part, module) and len(part.decorator_list) == 1:
                yield from free_names(part)
            elif isinstance(part, ast.Assign | ast.AnnAssign | ast.Expr):
                yield from names_read(part)
            else:
                test = ast.unparse(node.test)
                raise UnsupportedKernel(
                    f"{self.origin}: {module.path.name}:{part.lineno} depends on {test!r}"
                )

    def _take_import(self, module: SourceModule, name: str, node: Import) -> None:
        alias = next(alias for alias in node.names if bound_name(alias) == name)
        origin = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        relative = isinstance(node, ast.ImportFrom) and node.level > 0
        if not relative and origin.partition(".")[0] in _LIFTED_IMPORTS:
            kind = f"from {origin} import " if isinstance(node, ast.ImportFrom) else "import "
            as_name = f" as {alias.asname}" if alias.asname else ""
            self._is_new(name, full_name(node, name))
            self.import_lines.add(f"{kind}{alias.name}{as_name}")
            return
        path = self.source.engine_file(module, node)
        if path is None:
            raise UnsupportedKernel(
                f"{self.origin}: a kernel uses {name!r} of {origin or 'a module'}"
            )
        self.take(self.source.module(path), alias.name)
        if name != alias.name and self._is_new(name, f"{path}:{alias.name}"):
            self.pieces[name] = f"{name} = {alias.name}\n"

    def text(self) -> str:
        # Annotations stay unevaluated, as in the engines; triton reads both kinds.
        head = ["from __future__ import annotations\n", "\n"]
        head += [f"{line}\n" for line in sorted(self.import_lines)]
        return "".join(head) + "".join(f"\n\n{text}" for text in self.pieces.values())


def _parameters(node: ast.FunctionDef, origin: str) -> tuple[Parameter, ...]:
    args = [*node.args.posonlyargs, *node.args.args]
    first_default = len(args) - len(node.args.defaults)
    try:
        kept = _not_specialized(node)
    except ValueError:
        raise UnsupportedKernel(
            f"{origin}: do_not_specialize of {node.name} is not a plain list"
        ) from None
    found = []
    for i, arg in enumerate(args):
        note = ast.unparse(arg.annotation) if arg.annotation else ""
        default = (
            _default(node.args.defaults[i - first_default]) if i >= first_default else NO_DEFAULT
        )
        specialize = arg.arg not in kept and i not in kept
        found.append(Parameter(arg.arg, "constexpr" in note, default, specialize))
    return tuple(found)


def _default(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNREADABLE_DEFAULT


def _not_specialized(node: ast.FunctionDef) -> set[object]:
    for decorator in node.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else []:
            if keyword.arg == "do_not_specialize":
                return set(ast.literal_eval(keyword.value))
    return set()


def find_source(root: Path, origin: str, function: str, locations: Sequence[str]) -> Path:
    """Return the file that defines a function. `locations`: paths under the package, in any
    version.

    Raises UnsupportedKernel if none of these files defines it.
    """
    for path in (root / relative for relative in locations):
        if path.is_file() and f"\ndef {function}(" in path.read_text(encoding="utf-8"):
            return path
    raise UnsupportedKernel(f"{origin} has no {function} in the files of known versions")
