"""Interpret an engine's source for a platform. Nothing is imported or executed.

A file has top-level names, and statements that bind them. Its questions about its place are
answered for lifted kernels: they run beside Triton, on a known platform, and none of the engine's
environment variables is set there. All other questions of an expression have no answer.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeGuard

from tuner.devices.target import CUDA, HIP
from tuner.errors import UnsupportedKernel

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Assignment = ast.Assign | ast.AnnAssign
Import = ast.Import | ast.ImportFrom
_JIT = ("triton.jit", "triton.runtime.jit.jit")
_LAUNCHER_OPTIONS = ("launch_metadata", "repr")
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


def platform_probes(platform: str) -> dict[str, bool]:
    """Return the answers of an engine's platform probes on a platform, by their names."""
    answers = {f"is_{name}": name == platform for name in _PLATFORMS}
    answers |= {"is_rocm": platform == HIP, "is_cuda_alike": platform in (CUDA, HIP)}
    answers["is_tf32_supported"] = platform == CUDA  # by all cards from sm_80 on
    if platform == HIP:  # the answers of these depend on the card
        return answers
    return {**answers, "is_gfx942_supported": False, "is_gfx95_supported": False}


class Evaluator:
    """Evaluates expressions. `value_of` returns the value of a name, or UNKNOWN."""

    def __init__(self, probes: Mapping[str, bool], value_of: Callable[[str], object]) -> None:
        self._probes, self._value_of = probes, value_of

    def value(self, node: ast.expr) -> object:
        """Return the value of an expression, or UNKNOWN."""
        if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Set):
            with suppress(ValueError):
                return ast.literal_eval(node)
            return UNKNOWN
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
        """Say whether an expression, or a part of it, is a question that has an answer here."""
        return any(
            isinstance(part, ast.expr) and self._answer(part) is not UNKNOWN
            for part in ast.walk(node)
        )

    def _joined(self, node: ast.BoolOp) -> object:
        """Evaluate `and` or `or`: a false part decides `and`, a true part `or`, even beside unknown
        parts.
        """
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
        """Answer a question about the place; UNKNOWN for any other expression."""
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


def _asks_for_triton(name: str) -> bool:
    return name.strip("_").lower() == "has_triton"


class ConditionFolder(ast.NodeTransformer):
    """Replaces each question whose answer is known by the answer."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.count = 0  # how many were replaced

    def visit(self, node: ast.AST) -> Any:  # noqa: ANN401  # as its base has it
        """Visit a node; called for each node."""
        if isinstance(node, ast.expr) and self._evaluator.asks(node):
            value = self._evaluator.value(node)
            if value is None or isinstance(value, bool | int | str):
                self.count += 1
                return ast.Constant(value)
        return self.generic_visit(node)


class SourceModule:
    """A source file, read as Python would if no `try` in it failed.

    Raises OSError, SyntaxError or ValueError for a file that is not Python.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.digest = path, digest_of(path)
        text = path.read_text(encoding="utf-8")
        self._lines = text.splitlines(keepends=True)
        self.bindings = bindings(ast.parse(text).body)

    def segment(self, node: ast.stmt) -> str:
        """Return a statement's own lines, as they would stand at the top level of a file."""
        return self._text(node.lineno, node)

    def kernel(self, node: ast.FunctionDef) -> str:
        """Return a jitted function's own lines, from its last decorator on, which is Triton's.

        The decorators above it (autotune, heuristics) choose a configuration for each launch, and
        some arguments of Triton's name a launch to profilers: both belong to the launcher.
        """
        jit = node.decorator_list[-1]
        kept = compiler_options(jit)
        if kept is jit:
            return self._text(jit.lineno, node)
        return f"@{ast.unparse(kept)}\n{self._text(node.lineno, node)}"

    def _text(self, first: int, node: ast.stmt) -> str:
        text = "".join(self._lines[first - 1 : node.end_lineno]).rstrip() + "\n"
        if node.col_offset:
            text = textwrap.dedent(text)
        return text.removeprefix("el") if isinstance(node, ast.If) else text


def digest_of(path: Path) -> bytes:
    """Return a digest of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""


def bindings(statements: Sequence[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return the statements that bind each name, in their order.

    An `if` binds the names that its branches bind.
    """
    found: dict[str, list[ast.stmt]] = {}
    for node, names in _bound(statements):
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def _bound(statements: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, list[str]]]:
    for node in statements:
        if isinstance(node, Definition):
            yield node, [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield node, [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node, [bound_name(alias) for alias in node.names]
        elif isinstance(node, ast.If):
            yield node, [*bindings([*node.body, *node.orelse])]
        elif isinstance(node, ast.Try):
            yield from _bound(node.body)


def bound_name(alias: ast.alias) -> str:
    """Return the name that a part of an import statement binds."""
    return alias.asname or alias.name.partition(".")[0]


def original_name(node: Import, name: str) -> str:
    """Return the original name of the object that an import statement binds to `name`."""
    return next(alias.name for alias in node.names if bound_name(alias) == name)


def full_name(node: Import, name: str) -> str:
    """Return the full name of an absolute import's object that `name` has:
    "triton.language.exp".
    """
    original = original_name(node, name)
    if isinstance(node, ast.ImportFrom):
        return f"{node.module}.{original}"
    return original if any(alias.asname == name for alias in node.names) else name


def module_files(stem: Path) -> Iterator[Path]:
    """Yield the files of a module whose path without an ending is `stem`."""
    return (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())


def compiler_options(jit: ast.expr) -> ast.expr:
    """Return Triton's decorator without the arguments that do not reach the compiler."""
    if not isinstance(jit, ast.Call):
        return jit
    kept = [keyword for keyword in jit.keywords if keyword.arg not in _LAUNCHER_OPTIONS]
    return jit if len(kept) == len(jit.keywords) else ast.Call(jit.func, jit.args, kept)


def names_read(node: ast.AST) -> list[str]:
    """List every name that a piece of source reads, in the order of `ast.walk`."""
    found = (
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
    return list(dict.fromkeys(found))


class EngineSource:
    """The files of an engine's package, whose folder is `root`.

    `origin` names the engine in messages. `probes` has the answers of its platform probes.
    """

    def __init__(self, root: Path, origin: str, probes: Mapping[str, bool]) -> None:
        self.root, self.origin, self.probes = root, origin, probes
        self._modules: dict[Path, SourceModule] = {}
        self._kernels: dict[Path, dict[str, ast.FunctionDef]] = {}
        self._asked: set[ast.stmt] = set()  # the statements that are being evaluated

    def module(self, path: Path) -> SourceModule:
        """Return a file's names. Raises UnsupportedKernel if it cannot be read."""
        if path not in self._modules:
            try:
                self._modules[path] = SourceModule(path)
            except (OSError, SyntaxError, ValueError) as error:
                raise UnsupportedKernel(f"{self.origin}: cannot read {path}: {error}") from None
        return self._modules[path]

    def digests(self) -> dict[Path, bytes]:
        """Return a digest of each file that was read."""
        return {path: module.digest for path, module in self._modules.items()}

    def kernels(self, module: SourceModule) -> dict[str, ast.FunctionDef]:
        """Return the jitted functions that a file defines on this platform."""
        if module.path not in self._kernels:
            found = ((name, self.binding(module, name)) for name in module.bindings)
            jitted = {name: node for name, node in found if self.is_jitted(node, module)}
            self._kernels[module.path] = jitted
        return self._kernels[module.path]

    def binding(self, module: SourceModule, name: str) -> ast.stmt | None:
        """Return the statement that defines a name; None for an unknown name.

        This is the last statement that binds it, or a whole `if` whose test has no answer here. If
        the statement wraps a jitted function (`kernel = autotune(kernel)`), return the function.
        """
        return self._last(module, module.bindings.get(name, ()), name)

    def _last(
        self, module: SourceModule, statements: Sequence[ast.stmt], name: str
    ) -> ast.stmt | None:
        if not statements:
            return None
        *earlier, node = statements
        if isinstance(node, ast.If) and node not in self._asked:
            branch = self._branch(module, node)
            bound = [] if branch is None else bindings(branch).get(name, [])
            found = node if branch is None else self._last(module, bound, name)
        elif isinstance(node, ast.If):  # its own test reads the name as it was before
            found = None
        else:
            found = node
        if found is None:
            return self._last(module, earlier, name)
        if isinstance(found, ast.Assign) and name in names_read(found.value):
            before = self._last(module, earlier, name)
            return before if self.is_jitted(before, module) else found
        return found

    def _branch(self, module: SourceModule, node: ast.If) -> list[ast.stmt] | None:
        """Return the branch that runs; None if that is unknown.

        Engines ask in many ways whether Triton can be imported. If it cannot, there is nothing to
        lift, so the branch that imports it runs.
        """
        value = self._value(module, node, node.test)
        if value is not UNKNOWN:
            return node.body if value else node.orelse
        body, other = _imports_triton(node.body), _imports_triton(node.orelse)
        if body == other:
            return None
        return node.body if body else node.orelse

    def answered(self, module: SourceModule, node: Assignment) -> Assignment:
        """Replace an assignment's questions about platform or environment by their answers.

        Return the same object if it asks nothing.
        """
        changed = copy.deepcopy(node)
        assert changed.value is not None  # a bare annotation binds nothing
        answers = ConditionFolder(self._evaluator(module))
        changed.value = answers.visit(changed.value)
        return changed if answers.count else node

    def _evaluator(self, module: SourceModule) -> Evaluator:
        return Evaluator(self.probes, lambda name: self._named_value(module, name))

    def _value(self, module: SourceModule, owner: ast.stmt, node: ast.expr) -> object:
        """Return the value of an expression of the statement `owner`, which may refer to itself."""
        self._asked.add(owner)
        try:
            return self._evaluator(module).value(node)
        finally:
            self._asked.discard(owner)

    def _named_value(self, module: SourceModule, name: str) -> object:
        node = self.binding(module, name)
        if node is None or node in self._asked:
            return UNKNOWN
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            return self._value(module, node, node.value)
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return UNKNOWN
        path = self.engine_file(module, node)
        if path is not None:
            return self._named_value(self.module(path), original_name(node, name))
        return False if full_name(node, name) == "typing.TYPE_CHECKING" else UNKNOWN

    def is_jitted(self, node: ast.stmt | None, module: SourceModule) -> TypeGuard[ast.FunctionDef]:
        """Say whether a statement defines a function for Triton. Its last decorator says so."""
        if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
            return False
        last = node.decorator_list[-1]
        name = ast.unparse(last.func if isinstance(last, ast.Call) else last)
        first, dot, rest = name.partition(".")
        return f"{self._imported_name(module, first)}{dot}{rest}" in _JIT

    def _imported_name(self, module: SourceModule, name: str) -> str | None:
        """Return the full name of a name's object, if another package defines it."""
        node = self.binding(module, name)
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return None
        path = self.engine_file(module, node)
        if path is None:
            return full_name(node, name)
        return self._imported_name(self.module(path), original_name(node, name))

    def engine_file(self, module: SourceModule, node: Import) -> Path | None:
        """Return the engine's file from which a statement imports; None for another package's."""
        if isinstance(node, ast.Import):
            return None
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            base = module.path.parents[node.level - 1]
        elif parts and parts[0] == self.root.name:
            base, parts = self.root, parts[1:]
        else:
            return None
        # `from . import x` in __init__.py imports a module.
        files = module_files(base.joinpath(*parts))
        return next((path for path in files if path != module.path), None)


def _imports_triton(statements: Sequence[ast.stmt]) -> bool:
    found = ((node, name) for name, nodes in bindings(statements).items() for node in nodes)
    return any(
        isinstance(node, ast.Import | ast.ImportFrom)
        and full_name(node, name).partition(".")[0] == "triton"
        for node, name in found
    )
