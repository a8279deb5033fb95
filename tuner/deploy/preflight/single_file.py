"""Write the preflight as one Python file, for machines that have only Python 3.8 or later.

The modules are joined in the order of import, without their imports of each other. They share one
namespace, so top-level names must differ, and imports between them must not rename anything.
"""

from __future__ import annotations

import ast
from pathlib import Path

# In the order of import.
MODULES = (
    "errors",
    "shell",
    "deploy.preflight.facts",
    "deploy.preflight.network",
    "deploy.preflight.gpus",
    "deploy.preflight.weights",
    "deploy.preflight.capture",
    "deploy.preflight.links",
    "deploy.preflight.check_gpus",
    "deploy.preflight.check_network",
    "deploy.preflight.check_cluster",
    "deploy.preflight.report",
    "deploy.preflight.main",
)
_HEAD = '''#!/usr/bin/env python3
"""Check GPU nodes and their network before an engine is launched on them.

Needs Python 3.8 or later and nothing else. See --help. Made from tuner/deploy/preflight.
"""

from __future__ import annotations
'''


def build_single_file(path: Path) -> None:
    """Write the file. Equal sources give equal bytes. Raises RuntimeError where names clash."""
    package = Path(__file__).parents[2]
    parts = [_HEAD]
    owner: dict[str, str] = {}
    for module in MODULES:
        source = (package / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        tree = ast.parse(source)
        for name in _defined(tree):
            if owner.setdefault(name, module) != module:
                raise RuntimeError(f"{name} is defined in {owner[name]} and in {module}")
        parts.append(f"\n# ---- {module} ----\n{_body(source, tree)}")
    path.write_bytes("\n".join(parts).encode("utf-8"))
    path.chmod(0o755)


def _defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            found = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            names |= {n.id for n in found if isinstance(n.ctx, ast.Store)}
    return names


def _body(source: str, tree: ast.Module) -> str:
    """The module without its docstring and its imports from this package."""
    lines = source.splitlines()
    for node in tree.body:
        docstring = node is tree.body[0] and isinstance(node, ast.Expr)
        internal = isinstance(node, ast.ImportFrom) and (
            node.module == "__future__" or (node.module or "").startswith("tuner")
        )
        if docstring or internal:
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return "\n".join(lines).strip("\n") + "\n"
