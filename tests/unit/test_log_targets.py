"""The problems of a log: engine and GPU as it says, each once; one failure ends no other."""

import pytest

from tuner.cli.family_options import FamilyChoice
from tuner.cli.problems import TargetOptions, targets_of
from tuner.cli.targets import read_command_target
from tuner.devices.table import find_device
from tuner.errors import BadInput

MOE = "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at "
DOWN = "Using MoE kernel config with down_moe=False. Performance might be sub-optimal! Config file not found at "  # noqa: E501
GEMM = "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at "  # noqa: E501
FOLDER = "/x/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/"
R1 = "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]"
SERVER = (
    "server_args=ServerArgs(model_path='/mnt/models/DeepSeek-R1', tokenizer_path='x', tp_size=16)"
)
UNKNOWN = "E=7,N=33,device_name=NVIDIA_H20"


@pytest.fixture
def resolved(tmp_path):
    def resolved(*lines: str):
        log = tmp_path / "server.log"
        log.write_text("\n".join(lines))
        asked = TargetOptions(read_command_target(str(log)), find_device("H20"), "sglang", "0.5.16")
        return targets_of(asked, FamilyChoice((), {}), every=False)

    return resolved


def test_up_and_down_are_one_problem_and_the_model_picks_among_presets(resolved):
    (found,) = resolved(SERVER, f"{MOE}{FOLDER}{R1}.json", f"{DOWN}{FOLDER}{R1}_down.json")
    (problem,) = found.problems
    assert (problem.K, problem.top_k) == (7168, 8)
    assert "deepseek-r1 at tp=16" in found.notes[0]


def test_what_is_not_known_is_left_out_and_said(resolved):
    gemm = (
        f"{GEMM}/x/N=2112,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    )
    (found,) = resolved(f"{MOE}{FOLDER}{UNKNOWN}.json", gemm)
    assert found.family.name == "dense_gemm"
    assert found.notes[0].startswith("left out: E=7,N=33")
    with pytest.raises(BadInput, match="E=7,N=33"):
        resolved(f"{MOE}{FOLDER}{UNKNOWN}.json")
    with pytest.raises(BadInput, match="names no missing config file"):
        resolved("all is well")


def test_engine_and_gpu_are_the_logs_or_the_lines(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(f"sglang: 0.5.12\n{SERVER}\n{MOE}{FOLDER}{R1}.json\n")
    named = read_command_target(str(log)).served_by()
    assert named == ("sglang==0.5.12", "NVIDIA_H20")
    named = read_command_target(
        f"/x/vllm/model_executor/layers/fused_moe/configs/{R1}.json"
    ).served_by()
    assert named == ("vllm", "NVIDIA_H20")
    assert read_command_target("deepseek-r1").served_by() == ("", "")
