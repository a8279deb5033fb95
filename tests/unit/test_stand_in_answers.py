"""What stand-ins for an engine's own modules answer about the card."""

import pytest

from tuner.devices.target import cuda_target
from tuner.errors import UnsupportedKernel
from tuner.kernels.launcher import Launcher, TensorSpec
from tuner.kernels.stand_ins import variable_answers

SOURCE = """
from sglang.srt.utils import get_device_sm
import triton
import triton.language as tl

DEEP = get_device_sm() >= 90

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    pass

def launch(x):
    kernel[(1,)](x, BLOCK=128 if DEEP else 64)
"""


def test_variables_that_nobody_sets_have_the_defaults_of_their_source():
    answers = variable_answers(
        "class Envs:\n"
        "    USUAL = EnvBool(True)\n"
        "    NUMBER = EnvInt(3, secret=True)\n"
        "    COMPUTED = EnvBool(on_hip())\n"
        "envs = Envs()\n"
        "other = make()\n"
    )
    envs = answers.envs
    assert (envs.USUAL.get(), envs.NUMBER.get()) == (True, 3)
    with pytest.raises(UnsupportedKernel, match="COMPUTED"):
        bool(envs.COMPUTED.get())


def test_code_may_ask_for_the_compute_capability_when_it_is_imported(tmp_path):
    (tmp_path / "sglang").mkdir()
    file = tmp_path / "sglang" / "gemm.py"
    file.write_text(SOURCE)
    for target, block in ((cuda_target(9, 0), 128), (cuda_target(8, 9), 64)):
        launcher = Launcher(file, tmp_path / "sglang", "made-up 1.0", target)
        followed = launcher.follow("launch", {"x": TensorSpec("x", (16,), "bf16")})
        assert [one.arguments["BLOCK"] for one in followed.launches] == [block]


FILLED = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(sorted_ids, expert_ids, BLOCK: tl.constexpr):
    pass

def launch(x):
    sorted_ids = torch.empty((x.numel(),), dtype=torch.int32, device=x.device)
    sorted_ids.fill_(x.numel())
    expert_ids = torch.zeros((4,), dtype=torch.int32, device=x.device)
    kernel[(1,)](sorted_ids, expert_ids, BLOCK=16)
"""


def test_code_may_fill_tensors_as_vllm_0_8_and_0_9_do(tmp_path):
    (tmp_path / "vllm").mkdir()
    file = tmp_path / "vllm" / "align.py"
    file.write_text(FILLED)
    launcher = Launcher(file, tmp_path / "vllm", "made-up 1.0", cuda_target(9, 0))
    (launch,) = launcher.follow("launch", {"x": TensorSpec("x", (16,), "bf16")}).launches
    tensors = [launch.arguments[name] for name in ("sorted_ids", "expert_ids")]
    assert [(tensor.shape, tensor.dtype) for tensor in tensors] == [((16,), "i32"), ((4,), "i32")]
