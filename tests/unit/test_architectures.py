"""What a GPU can do is a row of the table of devices: no other module compares architectures."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEVICES = ROOT / "tuner" / "devices"
NAMES = re.compile(r"(^|_)(arch|architecture|capability|major|minor)$", re.IGNORECASE)
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def comparisons(source: str) -> list[str]:
    """Where a text compares an architecture's number, or computes with it."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Compare) and _compares(node))
        or (isinstance(node, ast.BinOp) and (_is_arch(node.left) or _is_arch(node.right)))
    ]


def _compares(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    if not any(_is_arch(side) for side in sides):
        return False
    return any(isinstance(op, ORDERED) for op in node.ops) or any(map(_has_number, sides))


def _is_arch(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _is_arch(node.func)
    if isinstance(node, ast.Subscript):  # get_device_capability()[0], row["arch"]
        key = node.slice
        named = isinstance(key, ast.Constant) and isinstance(key.value, str)
        return _is_arch(node.value) or (named and bool(NAMES.search(str(key.value))))
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(NAMES.search(name))


def _has_number(node: ast.expr) -> bool:
    inside = ast.walk(node)
    return any(isinstance(n, ast.Constant) and type(n.value) in (int, float) for n in inside)


@pytest.mark.parametrize(
    "text",
    [
        "arch >= 90",
        "device.arch == 90",
        "90 <= device.target.arch",
        "case.arch < OLDEST_ARCH",
        "arch // 10 == 9",
        "properties.major * 10 + properties.minor",
        "torch.cuda.get_device_capability() >= (9, 0)",
        "torch.cuda.get_device_capability()[0] == 9",
        "self._arch in (89, 90)",
        "row['arch'] > 80",
    ],
)
def test_a_comparison_is_found(text):
    assert comparisons(text)


@pytest.mark.parametrize(
    "text",
    [
        "device.target == other.target",
        "target.is_sm(90)",
        "device.architecture.sync_rate < 1",
        "model.architecture in _UNGATED",
        "search < 3",
        "cuda_target(properties.major, properties.minor)",
    ],
)
def test_other_text_is_not(text):
    assert not comparisons(text)


def test_no_module_but_the_devices_own_compares_architectures():
    paths = [path for room in ("tuner", "workers", "api") for path in (ROOT / room).rglob("*.py")]
    others = [path for path in paths if DEVICES not in path.parents]
    assert len(others) > 100
    texts = {path: path.read_text(encoding="utf-8") for path in others}
    found = {
        str(path.relative_to(ROOT)): lines
        for path, text in texts.items()
        if re.search("arch|capability|major|minor", text, re.IGNORECASE)
        if (lines := comparisons(text))
    }
    assert not found, "ask the target or the architecture of tuner/devices for what it can do"


def test_only_the_devices_name_a_compilers_target():
    """A target is a row of the table, or what the GPU at hand says of itself."""
    call = re.compile(r"GPUTarget\((?!target\.)|(?<!\w)Target\(\s*[\"'](cuda|hip)")
    paths = [path for room in ("tuner", "workers", "api") for path in (ROOT / room).rglob("*.py")]
    others = [path for path in paths if DEVICES not in path.parents]
    assert len(others) > 100
    assert not [str(path) for path in others if call.search(path.read_text(encoding="utf-8"))]


def test_attention_takes_no_hardware_from_fused_moe():
    folder = ROOT / "tuner" / "families" / "attention"
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    assert len(texts) > 10
    hardware = re.compile(r"families\.fused_moe\.(predict|inputs|layer)\b")
    assert not [name for name, text in texts.items() if hardware.search(text)]
