"""What lifting reads of an engine's source: branches, decorators, imports and questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tuner.devices.target import CUDA, HIP
from tuner.errors import UnsupportedKernel
from tuner.kernels.lift import Lifted, lift, lift_from
from tuner.kernels.source import EngineSource

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = "@triton.jit\ndef kernel(x):\n    tl.store(x, used)\n"


def text(tmp_path: Path, main: str, platform: str = CUDA, **others: str) -> str:
    """What is lifted of `kernel` in main.py, behind the imports."""
    root = tmp_path / "engine"
    root.mkdir(exist_ok=True)
    for name, content in {"main": main, **others}.items():
        (root / f"{name}.py").write_text(content)
    lifted = lift(root / "main.py", ["kernel"], root, "engine 1", platform).text
    compile(lifted, "lifted", "exec")
    return lifted


def branches(test: str, before: str = "") -> str:
    return f"{HEAD}{before}if {test}:\n    used = 1\nelse:\n    used = 2\n\n\n{KERNEL}"


@pytest.mark.parametrize(
    ("test", "cuda", "hip"),
    [
        ("is_cuda()", 1, 2),
        ("current_platform.is_rocm()", 2, 1),
        ("not is_hip()", 1, 2),
        ("is_npu() or is_xpu()", 2, 2),
        ("is_cuda() or anything()", 1, None),
        ("is_hip() and anything()", 2, None),
        ("TYPE_CHECKING or HAS_TRITON", 1, 1),
        ("_HAS_TRITON", 1, 1),
        ("not has_triton()", 2, 2),
        ("TYPE_CHECKING", 2, 2),
        ("os.environ.get('FAST', '0') == '1'", 2, 2),
        ("os.environ.get('FAST')", 2, 2),
        ("os.getenv('FAST', '1') in ['1', 'true']", 1, 1),
        ("os.getenv('FAST', '1') in [ON]", None, None),
        ("os.getenv('FAST') is None", 1, 1),
        ("FLAG", 2, 1),
    ],
)
@pytest.mark.parametrize("platform", [CUDA, HIP])
def test_the_branch_that_runs_is_read(tmp_path, test, cuda, hip, platform):
    before = "import os\nfrom typing import TYPE_CHECKING\nFLAG = is_hip()\n"
    expected = cuda if platform == CUDA else hip
    if expected is None:
        with pytest.raises(UnsupportedKernel, match=r"engine 1: "):
            text(tmp_path, branches(test, before), platform)
    else:
        lifted = text(tmp_path, branches(test, before), platform)
        assert f"\n\n\nused = {expected}\n\n\n" in lifted
        assert "if" not in lifted


def test_a_flag_of_another_file_is_followed(tmp_path):
    utils = "from typing import TYPE_CHECKING\n_on_hip = is_hip()\n"
    main = branches("on_hip", "from engine.utils import _on_hip as on_hip\n")
    assert "used = 2" in text(tmp_path, main, CUDA, utils=utils)
    assert "used = 1" in text(tmp_path, main, HIP, utils=utils)


def test_the_branch_that_imports_triton_is_read_whatever_its_test_asks(tmp_path):
    main = "from engine.shim import tl, triton\nused = 1\n\n\n" + KERNEL
    shim = (
        "from engine.probe import CAN_IMPORT\n"
        "if CAN_IMPORT:\n    import triton\n    import triton.language as tl\n"
        "else:\n    triton = Placeholder()\n    tl = Placeholder()\n"
    )
    lifted = text(tmp_path, main, shim=shim, probe="CAN_IMPORT = find_out()\n")
    assert "import triton\nimport triton.language as tl\n" in lifted
    assert "Placeholder" not in lifted


def test_a_name_that_its_own_test_reads_means_what_it_meant_before(tmp_path):
    main = f"{HEAD}used = None\nif used is None:\n    used = 3\n\n\n{KERNEL}"
    assert "\n\n\nused = 3\n" in text(tmp_path, main)


WHOLE = """\
if hasattr(tl, "gather"):
    used = tl.gather
elif LIMIT > 3:
    used = None
else:

    @triton.jit
    def used(x):
        return x + LIMIT
"""


def test_a_test_that_triton_answers_is_lifted_with_its_whole_statement(tmp_path):
    lifted = text(tmp_path, f"{HEAD}LIMIT = 4\n{WHOLE}\n\n{KERNEL}")
    assert f"LIMIT = 4\n\n\n{WHOLE}\n\n@triton.jit\ndef kernel" in lifted


def test_an_undecided_elif_is_lifted_as_an_if(tmp_path):
    main = f"{HEAD}LIMIT = 4\nif is_npu():\n    used = 0\nel{WHOLE}\n\n{KERNEL}"
    assert f"LIMIT = 4\n\n\n{WHOLE}\n\n@triton.jit" in text(tmp_path, main)


@pytest.mark.parametrize(
    ("branch", "named"),
    [
        ("    import torch as used\n", "main.py:4 depends on 'LIMIT > 3'"),
        ("    def used(x):\n        return x\n", "main.py:4 depends on"),
        ("    used = torch.e\n", "cannot lift 'torch'"),
    ],
)
def test_a_whole_statement_is_refused_for_what_triton_lacks(tmp_path, branch, named):
    main = f"import triton.language as tl, triton\nLIMIT = tl.x\nif LIMIT > 3:\n{branch}\n{KERNEL}"
    with pytest.raises(UnsupportedKernel, match=f"engine 1: {named}"):
        text(tmp_path, main)


def test_decorators_of_launchers_are_left_out(tmp_path):
    main = (
        f"{HEAD}import torch\nused = 1\n\n\n"
        "@cached(lambda args: args)\n@triton.autotune(configs=[torch.x], key=['n'])\n"
        "@triton.heuristics({'B': lambda args: args['n']})\n"
        "@triton.jit(do_not_specialize=['n'])  # a reason\n"
        "def kernel(x, n, B: tl.constexpr):\n    tl.store(x, used)\n"
    )
    lifted = text(tmp_path, main)
    assert "used = 1\n\n\n@triton.jit(do_not_specialize=['n'])  # a reason\ndef kernel" in lifted
    assert "torch" not in lifted


def test_arguments_of_jit_that_only_profilers_read_are_left_out(tmp_path):
    jit = "@triton.jit(repr=named, do_not_specialize=['n'], launch_metadata=told)"
    main = f"{HEAD}used = 1\n\n\n{jit}\ndef kernel(x, n):\n    tl.store(x, used)\n"
    assert "\n@triton.jit(do_not_specialize=['n'])\ndef kernel(x, n):" in text(tmp_path, main)


def test_a_jitted_function_that_is_wrapped_later_is_still_the_kernel(tmp_path):
    main = f"{HEAD}used = 1\n\n\n{KERNEL}\n\nif not is_cpu():\n    kernel = autotune(kernel)\n"
    assert text(tmp_path, main).endswith(KERNEL)


@pytest.mark.parametrize(
    ("value", "lifted"),
    [
        ("is_hip()", "False"),
        ("tl.constexpr(current_platform.is_cuda())", "tl.constexpr(True)"),
        ("1 if is_gfx942_supported() else 2", "1 if False else 2"),
        ("get_bool_env_var('AITER') and is_hip()", "False"),
        ("int(os.environ.get('WIDTH', '64'))", "int('64')"),
        ("4  *  4", "4  *  4"),  # word for word
    ],
)
def test_an_assignment_gets_the_answers_to_what_it_asks(tmp_path, value, lifted):
    assert f"\n\n\nused = {lifted}\n" in text(tmp_path, f"{HEAD}used = {value}\n\n\n{KERNEL}")


def test_a_name_that_another_file_has_imported_keeps_its_alias(tmp_path):
    main = "from engine.shim import tl, triton\nfrom engine.shim import lib as used\n\n\n" + KERNEL
    shim = f"{HEAD}import triton.language.extra.libdevice as lib\n"
    lifted = text(tmp_path, main, shim=shim)
    assert "import triton.language.extra.libdevice as lib\n" in lifted
    assert "\n\n\nused = lib\n" in lifted


def test_two_functions_may_import_one_name_from_two_files_that_pass_it_on(tmp_path):
    main = (
        f"{HEAD}from engine.one import used\nfrom engine.two import other\n\n\n"
        "@triton.jit\ndef kernel(x):\n    tl.store(x, used(other(x)))\n"
    )
    one = "@triton.jit\ndef used(x):\n    return x\n"
    two = "from .one import used\n@triton.jit\ndef other(x):\n    return used(x)\n"
    assert text(tmp_path, main, one=HEAD + one, two=HEAD + two).count("def used(") == 1


@pytest.mark.parametrize(
    "binding", ["used = tl.x\nused = tl.cast(used)\n", "def used():\n    pass\n"]
)
def test_what_cannot_be_read_from_one_statement_is_refused(tmp_path, binding):
    with pytest.raises(UnsupportedKernel, match=r"engine 1: .*'used'"):
        text(tmp_path, f"{HEAD}{binding}\n\n{KERNEL}")


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_functions_own_max_is_not_the_builtin(tmp_path, name):
    main = f"{HEAD}def {name}(x):\n    return 7\n\n\n{KERNEL.replace('used', f'{name}(x)')}"
    with pytest.raises(UnsupportedKernel, match=f"cannot lift '{name}'"):
        text(tmp_path, main)


def test_only_tritons_jit_makes_a_kernel(tmp_path):
    for decorator in ("cute.jit", "numba.jit", "gluon.jit", "jit"):
        head = HEAD + "import cute\nfrom numba import jit\nfrom triton.experimental import gluon\n"
        with pytest.raises(UnsupportedKernel, match="has no kernel kernel"):
            text(tmp_path, f"{head}used = 1\n\n\n{KERNEL.replace('triton.jit', decorator)}")
    head = "import triton.language as tl\nfrom triton import jit as fast\nused = 1\n\n\n"
    assert "@fast\ndef kernel" in text(tmp_path, head + KERNEL.replace("triton.jit", "fast"))


def test_parameters_that_cannot_be_read_are_refused(tmp_path):
    main = f"{HEAD}used = 1\n\n\n{KERNEL.replace('jit', 'jit(do_not_specialize=[*N])')}N = []\n"
    with pytest.raises(UnsupportedKernel, match="do_not_specialize of kernel"):
        text(tmp_path, main)


def test_kernels_are_lifted_once_until_a_file_of_theirs_changes(tmp_path, monkeypatch):
    lifts: list[object] = []

    def counted(source: EngineSource, files: Mapping[Path, Sequence[str]]) -> Lifted:
        lifts.append(source)
        return lift_from(source, files)

    monkeypatch.setattr("tuner.kernels.lift.lift_from", counted)
    main = f"{HEAD}from engine.other import used\n\n\n{KERNEL}"
    first = text(tmp_path, main, other="used = 1\n")
    assert text(tmp_path, main) == first
    assert len(lifts) == 1
    assert "used = 2\n" in text(tmp_path, main, other="used = 2\n")  # a file that it imports
    assert "used + used" in text(tmp_path, main.replace("used)", "used + used)"))
    assert len(lifts) == 3
    (tmp_path / "engine/other.py").unlink()
    with pytest.raises(UnsupportedKernel, match="uses 'used' of engine"):
        text(tmp_path, main.replace("used)", "used + used)"))


def test_another_thread_may_forget_kernels_at_any_time(tmp_path, monkeypatch):
    class Emptied(dict[object, object]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    monkeypatch.setattr("tuner.kernels.lift._LIFTED", Emptied())
    main = f"{HEAD}used = 1\n\n\n{KERNEL}"
    assert text(tmp_path, main) == text(tmp_path, main)
