"""E, N, K, top_k and file names of real config.json files, as the engines' own code gives them.

The sizes come from the model classes (engine_sizes.py) and the names from the loaders
(real_sglang.py, real_vllm.py). The type of weights is not compared here: it is decided by the
quantisation classes, which need the weights' loader.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from engine_sizes import engine_sizes
from real_sglang import RealSGLang
from real_vllm import RealVLLM

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.models import moe_problem
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.models.config_json import read_checkpoint
from tuner.models.fields import language_fields
from tuner.models.model import Model

MODELS = Path(__file__).parents[1] / "data" / "models"
ENGINES = Path(sys.prefix) / "share" / "tuner" / "engines"
FOLDERS = {
    "sglang": ENGINES / "sglang-0.5.23" / "sglang" / "srt" / "models",
    "vllm": ENGINES / "vllm-0.33.0" / "vllm" / "model_executor" / "models",
}
# The files of sglang and vLLM that make the expert layers of a class. "": nothing there can be
# evaluated, because a call takes its sizes from variables that only the running class has, or the
# release has no such file.
FILES = {
    "BailingMoeV2_5ForCausalLM": ("bailing_moe_linear", "bailing_moe_linear"),
    "DbrxForCausalLM": ("", ""),
    "DeepseekV2ForCausalLM": ("deepseek_v2", "deepseek_v2"),
    "DeepseekV3ForCausalLM": ("deepseek_v2", "deepseek_v2"),
    "DeepseekV32ForCausalLM": ("deepseek_v2", "deepseek_v2"),
    "DeepseekV4ForCausalLM": ("deepseek_v2", ""),
    "Ernie4_5_MoeForCausalLM": ("ernie4", "ernie45_moe"),
    "Gemma4ForConditionalGeneration": ("gemma4_causal", ""),
    "Glm4MoeForCausalLM": ("glm4_moe", "glm4_moe"),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", ""),
    "GlmMoeDsaForCausalLM": ("deepseek_v2", "deepseek_v2"),
    "GptOssForCausalLM": ("gpt_oss", "gpt_oss"),
    "Grok1ForCausalLM": ("grok", ""),
    "HYV3ForCausalLM": ("hunyuan_v3", ""),
    "JambaForCausalLM": ("", ""),
    "KimiK25ForConditionalGeneration": ("deepseek_v2", "deepseek_v2"),
    "KimiK3ForConditionalGeneration": ("", ""),
    "Lfm2MoeForCausalLM": ("lfm2_moe", "lfm2_moe"),
    "Llama4ForConditionalGeneration": ("", "llama4"),
    "LongcatFlashForCausalLM": ("", ""),
    "MiMoV2FlashForCausalLM": ("mimo_v2", "mimo_v2"),
    "MiMoV2ForCausalLM": ("mimo_v2", "mimo_v2"),
    "MiniMaxM2ForCausalLM": ("minimax_m2", "minimax_m2"),
    "MistralLarge3ForCausalLM": ("deepseek_v2", "deepseek_v2"),
    "MixtralForCausalLM": ("mixtral", "mixtral"),
    "NemotronHForCausalLM": ("nemotron_h", ""),
    "OlmoeForCausalLM": ("olmoe", "olmoe"),
    "PhiMoEForCausalLM": ("phimoe", "phimoe"),
    "Qwen2MoeForCausalLM": ("qwen2_moe", "qwen2_moe"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "qwen3_moe"),
    "Qwen3NextForCausalLM": ("qwen2_moe", "qwen3_next"),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_moe", "qwen3_moe"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen2_moe", "qwen3_next"),
    "Step3p7ForConditionalGeneration": ("", ""),
}
H200 = find_device("H200")


def checkpoints(engine: str) -> list[tuple[Path, Model, Path]]:
    """(folder, its model, the engine's file) of the checkpoints whose classes can be evaluated."""
    found = []
    for folder in sorted(MODELS.iterdir()):
        model = read_checkpoint(folder)
        file = FILES[model.architecture][list(FOLDERS).index(engine)]
        if file:
            found.append((folder, model, FOLDERS[engine] / f"{file}.py"))
    return found


@pytest.mark.parametrize("engine", list(FOLDERS))
def test_sizes_are_those_of_the_model_classes(engine, subtests):
    given = checkpoints(engine)
    assert len(given) >= 25
    for folder, model, source in given:
        with subtests.test(folder.name):
            config = language_fields(json.loads((folder / "config.json").read_text()))
            ours = (model.E, model.top_k, model.hidden, model.intermediate)
            assert engine_sizes(source, config) == {ours}


@pytest.mark.parametrize(("engine", "version"), [("sglang", "0.5.23"), ("vllm", "0.33.0")])
def test_names_are_those_of_the_loaders(engine, version, subtests):
    real = RealSGLang(version) if engine == "sglang" else RealVLLM(version)
    layer = moe_engine(find_engine(f"{engine}=={version}"))
    for folder, model, source in checkpoints(engine):
        if model.dtype is None:
            continue
        with subtests.test(folder.name):
            config = language_fields(json.loads((folder / "config.json").read_text()))
            ((E, top_k, K, N),) = engine_sizes(source, config)
            scheme = (model.dtype, model.block_shape, model.per_channel_quant)
            theirs = FusedMoe(E, N, K, top_k, *scheme)
            try:
                ours = layer.file_name(moe_problem(model), H200, Gemm.UP)
            except UnsupportedKernel:
                continue
            up = (Gemm.UP,) if engine == "sglang" else ()
            assert ours == real.file_name(theirs, H200.name, *up)
