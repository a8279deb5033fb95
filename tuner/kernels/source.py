"""A source file's top-level names, and the statements that bind them."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Assignment = ast.Assign | ast.AnnAssign
Import = ast.Import | ast.ImportFrom
_LAUNCHER_OPTIONS = ("launch_metadata", "repr")


class SourceModule:
    """A source file, read as Python would if no `try` in it failed.

    Raises OSError, SyntaxError or ValueError for a file that is not Python.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8")
        self._lines = text.splitlines(keepends=True)
        self.bindings = bindings(ast.parse(text).body)

    def segment(self, node: ast.stmt) -> str:
        """A statement's own lines, as they would stand at the top level of a file."""
        return self._text(node.lineno, node)

    def kernel(self, node: ast.FunctionDef) -> str:
        """A jitted function's own lines, from its last decorator on, which is Triton's.

        The decorators above it (autotune, heuristics) choose a configuration for each launch, and
        some arguments of Triton's name a launch to profilers: both are the launcher's business.
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


def bindings(statements: Sequence[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The statements that bind each name, in their order. An `if` binds what its branches bind."""
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
    """The name that one part of an import statement binds."""
    return alias.asname or alias.name.partition(".")[0]


def original_name(node: Import, name: str) -> str:
    """What an import statement calls the thing that it binds to `name`."""
    return next(alias.name for alias in node.names if bound_name(alias) == name)


def full_name(node: Import, name: str) -> str:
    """The full name of what an absolute import binds to `name`: "triton.language.exp"."""
    original = original_name(node, name)
    if isinstance(node, ast.ImportFrom):
        return f"{node.module}.{original}"
    return original if any(alias.asname == name for alias in node.names) else name


def module_files(stem: Path) -> Iterator[Path]:
    """The files that a module may be whose name without an ending is `stem`."""
    return (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())


def compiler_options(jit: ast.expr) -> ast.expr:
    """Triton's decorator without the arguments that do not reach the compiler."""
    if not isinstance(jit, ast.Call):
        return jit
    kept = [keyword for keyword in jit.keywords if keyword.arg not in _LAUNCHER_OPTIONS]
    return jit if len(kept) == len(jit.keywords) else ast.Call(jit.func, jit.args, kept)


def names_read(node: ast.AST) -> list[str]:
    """Every name that a piece of source reads, in the order of `ast.walk`."""
    found = (
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
    return list(dict.fromkeys(found))


def free_names(node: ast.FunctionDef) -> Iterator[str]:
    """Names that a jitted function reads from its module."""
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
