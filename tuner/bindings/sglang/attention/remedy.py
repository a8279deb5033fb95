"""Find a remedy if sglang's own constants for extend do not fit a GPU.

Releases before 0.5.2 launch the same tile on all GPUs from sm_80 on, and releases before 0.5.12 on
all GPUs from sm_90 on. The tile is too large if a block has 99 KiB of shared memory. The patch puts
the tiles of the first release that fits behind the lines that choose them, for the user's GPU
alone.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tuner.bindings.sglang.attention.binding import launcher_source
from tuner.devices.table import Device
from tuner.engines.engine import version_order
from tuner.engines.sglang.package import SGLang
from tuner.errors import UnsupportedKernel
from tuner.families.attention.engine import Remedy
from tuner.families.attention.problem import AttentionPhase
from tuner.files import shipped_toml

_CAPABILITY = "CUDA_CAPABILITY"
_TILE = {"BLOCK_M", "BLOCK_N"}


def find_remedy(engine: SGLang, device: Device) -> Remedy | None:
    """Return the remedy on the device; None if no launch of the release is known to be too
    large.
    """
    fits = [row for row in launches_table()["fits"] if device.target.name in row["on"]]
    if not fits or version_order(fits[0]["since"]) <= version_order(engine.version):
        return None
    try:
        file = launcher_source(engine, AttentionPhase.EXTEND)
        text = file.read_bytes().decode("utf-8")  # with the line ends that it has
    except (UnsupportedKernel, OSError, UnicodeDecodeError):
        return None
    since = fits[0]["since"]
    choice = _choice(text)
    if choice is None:
        lines, patched = (1, text.count("\n")), ""
    else:
        lines = (choice.lineno, choice.end_lineno or choice.lineno)
        patched = _patched(text, choice, device, since)
    return Remedy(
        root=engine.root.parent,
        file=file,
        lines=lines,
        fits_since=since,
        flags=backend_flags(engine.version, latent=True),
        notes=_notes(engine, device),
        patched=patched,
    )


def backend_flags(version: str, *, latent: bool) -> tuple[str, ...]:
    """Return the server's flags with which another backend than Triton's runs attention."""
    return tuple(backends_row(version)["latent" if latent else "others"])


def backends_row(version: str) -> Mapping[str, Any]:
    """Return a release's row of flags; the newest row if the release is older than all known
    rows.
    """
    rows: Sequence[Mapping[str, Any]] = launches_table()["backends"]
    old_enough = [r for r in rows if version_order(r["since"]) <= version_order(version)]
    return (old_enough or rows)[0]


@cache
def launches_table() -> dict[str, Any]:
    """Return the values of extend_launches.toml."""
    return shipped_toml("tuner.bindings.sglang.attention", "extend_launches.toml")


def _notes(engine: SGLang, device: Device) -> tuple[str, ...]:
    """Return notes on other figures that a server's log may show."""
    return tuple(
        f"a log of sglang {engine.version} may say {row['bytes']:,} bytes instead: {row['launch']} "
        f"needs them with Triton {row['triton']}, which it pins; the patch covers that launch too"
        for row in launches_table()["recorded"]
        if engine.version in row["releases"]
        and row["pinned"]
        and "mask" in row["launch"]
        and row["bytes"] > device.shared_optin_bytes
    )


def _choice(text: str) -> ast.If | None:
    """Return the statement that chooses the tile by the GPU's capability; None if there is none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and _names(node.test) >= {_CAPABILITY} and _assigns_tile(node)
    ]
    # `elif` is an `if` inside the `if` before, so the whole choice comes first.
    return min(found, key=lambda node: node.lineno, default=None)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _assigns_tile(node: ast.AST) -> bool:
    targets = [
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    ]
    return set(targets) >= _TILE


def _patched(text: str, choice: ast.If, device: Device, since: str) -> str:
    """Return the text with fitting tiles behind the choice."""
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * choice.col_offset
    card = device.target.capability
    tests = [f"{_CAPABILITY} == {card}"]
    if isinstance(choice.test, ast.BoolOp) and isinstance(choice.test.op, ast.And):
        # The guards of the capability there guard it here: it is read only with CUDA.
        guards = [part for part in choice.test.values if _CAPABILITY not in _names(part)]
        tests = [*(ast.unparse(guard) for guard in guards), *tests]
    kib = device.shared_optin_bytes // 1024
    added = [
        f"{indent}# sglang {since} launches these tiles if a block has {kib} KiB to share.",
        f"{indent}if {' and '.join(tests)}:",
        *(f"{indent}    {line}" for line in _tile_lines()),
    ]
    lines = io.StringIO(text, newline="\n").readlines()
    end = choice.end_lineno or choice.lineno
    return "".join([*lines[:end], *(line + newline for line in added), *lines[end:]])


def _tile_lines() -> list[str]:
    """Return the tiles by the columns of a query head, as Python."""
    found: list[str] = []
    for row in launches_table()["tiles"]:
        tile = f"BLOCK_M, BLOCK_N = ({row['tile'][0]}, {row['tile'][1]})"
        word = "elif" if found else "if"
        test = f"{word} Lq <= {row['columns_to']}:" if "columns_to" in row else "else:"
        found += [test, f"    {tile}"]
    return found
