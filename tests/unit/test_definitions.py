"""Functions of an engine, compiled one by one with what they use."""

import pytest

from tuner.errors import UnsupportedKernel
from tuner.kernels.definitions import Definitions
from tuner.kernels.stand_ins import stand_in_triton

MAIN = """
import torch
from engine.utils import enough, limit as most
from engine.platform import card
from engine.missing import gone
import os.path

SIZES = [16, 32]
broken = torch.nn.Module()


@triton.jit
def kernel(a, BLOCK: tl.constexpr):
    pass


@torch.compile(dynamic=True)
def choose(n, *, block=SIZES[0]):
    grid = lambda META: (triton.cdiv(n, META["BLOCK"]), most)

    def inner(x):
        return enough(x)

    if inner(n):
        kernel[grid](n, BLOCK=block, num_warps=4)
    return card() + os.path.sep


def lost():
    return gone()


def counted():
    global seen
    seen = seen + 1
    return seen


seen = 4
"""
UTILS = "limit = 7\n\n\ndef enough(x):\n    return x >= limit\n"


@pytest.fixture
def launches():
    return []


@pytest.fixture
def source(tmp_path, launches):
    root = tmp_path / "engine"
    root.mkdir()
    (root / "main.py").write_text(MAIN)
    (root / "utils.py").write_text(UTILS)
    triton = stand_in_triton(launches.append)
    known = {"triton": triton, "tl": triton.language, "card": lambda: "H100"}
    return Definitions(root / "main.py", root, "engine 1", known, launches.append)


def test_a_function_runs_with_helpers_constants_and_other_files(source, launches):
    assert source.call("choose", {"n": 40, "unasked": 1}) == "H100/"
    (launch,) = launches
    assert (launch.kernel, launch.grid) == ("kernel", (3, 7))
    assert launch.arguments == {"a": 40, "BLOCK": 16}
    assert launch.options == {"num_warps": 4}
    launches.clear()
    source.call("choose", {"n": 4})
    assert not launches


def test_a_global_is_the_files_own(source):
    assert [source.call("counted", {}), source.call("counted", {})] == [5, 6]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("choose", {}, "engine 1's choose has an unknown parameter 'n'"),
        ("chose", {}, "main.py has no 'chose', which the tuner needs"),
        ("lost", {}, "takes 'gone' from engine.missing, and lost needs it"),
        ("broken", {}, "has no 'torch'|takes 'torch' from torch"),
        ("choose", {"n": "x"}, "choose cannot be followed .*TypeError"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(source, name, arguments, message):
    with pytest.raises(UnsupportedKernel, match=message):
        source.call(name, arguments)


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path):
    found = Definitions(tmp_path / "main.py", tmp_path, "engine 1", {})
    with pytest.raises(UnsupportedKernel, match=r"engine 1: cannot read .*main\.py"):
        found.call("choose", {})


def test_heuristics_of_a_kernel_are_what_a_launch_sets(tmp_path, launches):
    """As `triton.heuristics` has it: each parameter follows from the arguments of the launch."""
    root = tmp_path / "engine"
    root.mkdir()
    (root / "main.py").write_text(
        "LEAST = 16\n\n\n"
        '@triton.heuristics({"HAS_B": lambda args: args["b"] is not None})\n'
        '@triton.heuristics({"BLOCK": lambda args: max(LEAST, args["n"])})\n'
        "@triton.jit\n"
        "def kernel(b, n, HAS_B: tl.constexpr, BLOCK: tl.constexpr):\n    pass\n\n\n"
        "def run(n):\n"
        '    kernel[lambda META: (n // META["BLOCK"],)](None, n)\n'
    )
    known = {"triton": stand_in_triton(launches.append)}
    found = Definitions(root / "main.py", root, "engine 1.0", known, launches.append)
    found.call("run", {"n": 8})
    found.call("run", {"n": 64})
    set_by_launches = [(one.arguments["HAS_B"], one.arguments["BLOCK"]) for one in launches]
    assert set_by_launches == [(False, 16), (False, 64)]
    assert [one.grid for one in launches] == [(0,), (1,)]


AUTOTUNED = """
import triton


def _without_many_warps(configs):
    return [c for c in configs if c.num_warps < 8 and c.kwargs["BLOCK"] < 256]


@triton.autotune(
    configs=_without_many_warps([
        triton.Config({"BLOCK": 32}),
        triton.Config({"BLOCK": 64}, num_stages=1, num_warps=2),
        triton.Config({"BLOCK": 128}, num_warps=8),
    ]),
    key=["n"],
)
@triton.jit
def kernel(n, BLOCK: tl.constexpr):
    pass


@triton.jit
def plain(n):
    pass


def launcher(n):
    kernel[lambda META: (triton.cdiv(n, META["BLOCK"]),)](n)
"""


def test_the_list_of_an_autotuner_is_read_and_its_choice_is_launched(tmp_path, launches):
    source = tmp_path / "engine" / "kernels.py"
    source.parent.mkdir()
    source.write_text(AUTOTUNED)
    chosen: dict[str, int] = {}
    known = {"triton": stand_in_triton(launches.append)}
    own = source, source.parent, "the engine", known, launches.append, chosen
    definitions = Definitions(*own)
    assert definitions.autotuned("kernel") == [
        {"BLOCK": 32, "num_warps": 4, "num_stages": 3},
        {"BLOCK": 64, "num_warps": 2, "num_stages": 1},
    ]
    assert definitions.autotuned("plain") == []
    with pytest.raises(UnsupportedKernel, match="has no kernel gone"):
        definitions.autotuned("gone")
    chosen |= definitions.autotuned("kernel")[1]
    definitions.call("launcher", {"n": 200})
    (launch,) = launches
    assert launch.grid == (4,)
    assert launch.arguments == {"n": 200, "BLOCK": 64}
    assert launch.options == {"num_warps": 2, "num_stages": 1}


ASSIGNED = """
from . import other
from .other import small


@triton.jit
def _kernel(n, BLOCK: tl.constexpr):
    pass


LISTED = [triton.Config({"BLOCK": 32}, num_warps=2)]
kernel = triton.autotune(configs=LISTED, key=["n"])(_kernel)


def launcher(n):
    from engine.nested.other import twice as more

    kernel[(more(n),)](n, **({"BLOCK": 16} if small(n) else {}))
"""
OTHER = "def small(n):\n    return n < 8\n\n\ndef twice(n):\n    return 2 * n\n"


def test_relative_imports_those_of_a_function_and_an_assigned_autotuner_are_followed(
    tmp_path, launches
):
    folder = tmp_path / "engine" / "nested"
    folder.mkdir(parents=True)
    (folder / "kernels.py").write_text(ASSIGNED)
    (folder / "other.py").write_text(OTHER)
    triton = stand_in_triton(launches.append)
    known = {"triton": triton, "tl": triton.language}
    own = folder / "kernels.py", folder.parent, "the engine", known, launches.append
    definitions = Definitions(*own)
    listed = [{"BLOCK": 32, "num_warps": 2, "num_stages": 3}]
    assert definitions.autotuned("_kernel") == listed
    for n in (4, 40):
        definitions.call("launcher", {"n": n})
    assert [(one.kernel, one.grid) for one in launches] == [("_kernel", (8,)), ("_kernel", (80,))]
    assert [one.arguments for one in launches] == [{"n": 4, "BLOCK": 16}, {"n": 40}]
