"""What stand-ins for an engine's own modules answer about the card."""

from tuner.devices.target import cuda_target
from tuner.kernels.launcher import Launcher, TensorSpec

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


def test_code_may_ask_for_the_compute_capability_when_it_is_imported(tmp_path) -> None:
    (tmp_path / "sglang").mkdir()
    file = tmp_path / "sglang" / "gemm.py"
    file.write_text(SOURCE)
    for target, block in ((cuda_target(9, 0), 128), (cuda_target(8, 9), 64)):
        launcher = Launcher(file, tmp_path / "sglang", "made-up 1.0", target)
        followed = launcher.follow("launch", {"x": TensorSpec("x", (16,), "bf16")})
        assert [one.arguments["BLOCK"] for one in followed.launches] == [block]
