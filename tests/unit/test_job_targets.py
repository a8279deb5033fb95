"""What people name: which family a text is of, and options that do not apply to it."""

from pathlib import Path

import pytest

from tuner.errors import (
    BadInput,
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    OptionsRefused,
    UnknownModel,
)
from tuner.models.serving import Serving
from tuner.models.table import find_preset, presets
from tuner.problems.dtypes import Dtype
from tuner.problems.points import UNKNOWN_SERVER
from tuner.problems.registry import families, find_family
from tuner.targets import families_of, other_families, resolve_all, resolve_target, with_options

LAYER = "fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16"
DECODE = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
MODELS = Path(__file__).parent.parent / "data" / "models"
MOE, ATTENTION, GEMM = families()[:3]


def test_a_problem_of_a_kind_nearly_right_names_the_right_one():
    with pytest.raises(BadProblem, match="did you mean 'decode_attention'"):
        find_family("decode_atention:q_heads=16")
    assert find_family(DECODE) is ATTENTION
    assert find_family(LAYER) is MOE
    assert find_family("deepseek-r1") is None
    assert find_family("./a:b=c/config.json d") is None


@pytest.mark.parametrize("option", [*MOE.selecting, *MOE.searching], ids=lambda one: one.name)
def test_an_option_of_a_layer_is_refused_for_attention(option):
    shared = option.name in {one.name for one in GEMM.options}
    whose = "a fused-MoE layer and quantised dense GEMMs" if shared else "a fused-MoE layer"
    said = f"{option.flag} is for {whose}: leave it out"
    with pytest.raises(OptionsRefused) as of_problem:
        resolve_target(DECODE, Serving(), given=[option.name])
    with pytest.raises(OptionsRefused) as of_model:
        resolve_target("deepseek-r1", Serving(), family=ATTENTION, given=[option.name])
    assert str(of_problem.value) == str(of_model.value) == said


@pytest.mark.parametrize("text", [LAYER, "E=256,N=128,device_name=NVIDIA_H20.json"])
def test_a_problem_and_a_line_of_another_family_are_refused_by_name(text):
    assert resolve_target(DECODE, Serving(), family=ATTENTION).family is ATTENTION
    with pytest.raises(BadProblem, match="a fused-MoE layer, which has no quantised dense GEMMs"):
        resolve_target(text, Serving(), family=GEMM)


def test_an_option_of_attention_is_refused_for_a_layer():
    with pytest.raises(OptionsRefused, match="^--workload is for attention: leave it out$"):
        resolve_target(LAYER, Serving(), given=["workload"])
    assert resolve_target(LAYER, Serving(), given=["batch_sizes", "gemms"]).family is MOE


def test_batch_sizes_are_a_layers_and_a_dense_gemms_alike():
    gemm = "block_gemm:N=512,K=1024,dtype=fp8_w8a8,block=128x128"
    assert resolve_target(gemm, Serving(), given=["batch_sizes"]).family is GEMM
    with pytest.raises(OptionsRefused, match="^--gemm is for a fused-MoE layer: leave it out$"):
        resolve_target(gemm, Serving(), given=["gemms"])


@pytest.mark.parametrize("name", ["tp", "dtype", "page_size", "kv_splits"])
def test_how_a_model_is_served_is_refused_for_a_problem(name):
    with pytest.raises(OptionsRefused, match="is for a model, and this is one problem"):
        resolve_target(DECODE, Serving(), given=[name])


def test_every_option_that_does_not_apply_is_named():
    with pytest.raises(OptionsRefused) as refused:
        resolve_target(DECODE, Serving(), given=["tp", "gemms", "workload", "ep"])
    assert refused.value.by_field.keys() == {"tp", "gemms", "ep"}
    assert all(flag in str(refused.value) for flag in ("--tp", "--gemm", "--ep"))


DENSE = Path(__file__).parents[1] / "data" / "dense_models" / "qwen3-32b-fp8"


class TestOtherFamilies:
    def test_a_model_without_a_family_s_layers_says_what_it_has(self):
        with pytest.raises(LacksLayers) as refused:
            resolve_target("qwen3-32b", Serving(tp=2))
        assert "not a mixture-of-experts model; the model has" in str(refused.value)
        assert "attention (--family attention)" in str(refused.value)
        assert "extend_attention and decode_attention" in refused.value.in_api_words()
        assert "--" not in refused.value.in_api_words()

    @pytest.mark.parametrize("as_bytes", [True, False])
    def test_a_config_json_says_it_too(self, as_bytes):
        target = (DENSE / "config.json").read_bytes() if as_bytes else str(DENSE)
        with pytest.raises(MalformedCheckpoint, match=r"attention \(--family attention\)"):
            resolve_target(target, Serving())

    @pytest.mark.parametrize(
        ("text", "error"),
        [("qwen9-32b", UnknownModel), ("E=8,N=64,device_name=NVIDIA_L40S.json", BadInput)],
    )
    def test_what_is_no_model_says_nothing_of_it(self, text, error):
        with pytest.raises(error) as refused:
            resolve_target(text, Serving(), family=ATTENTION)
        assert "the model has" not in str(refused.value)

    def test_a_size_that_does_not_divide_is_no_reason_to_name_them(self):
        with pytest.raises(IndivisibleShape) as refused:
            resolve_target("deepseek-r1", Serving(tp=3))
        assert "attention" not in str(refused.value)
        # The model has them all the same.
        assert ATTENTION in other_families(MOE, "deepseek-r1", Serving(tp=3))

    def test_a_dtype_of_weights_does_not_hide_attention(self):
        serving = Serving(tp=32, dtype=Dtype.INT8_W8A8)
        assert ATTENTION in other_families(MOE, "deepseek-r1", serving)
        assert MOE in other_families(ATTENTION, "deepseek-r1", serving)

    def test_their_flags_are_named(self):
        assert with_options([ATTENTION]) == "attention (--family attention)"
        assert with_options([MOE, ATTENTION]) == (
            "a fused-MoE layer (--family fused_moe) and attention (--family attention)"
        )

    def test_every_preset_has_a_family(self):
        without = {model.name for model in presets() if not families_of(model.name)}
        # Their experts are fp4, which no kernel that is tuned reads, unless a dtype is chosen.
        fp4 = {"deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash", "kimi-k3"}
        assert without == fp4
        for name in without:
            assert resolve_all(name, Serving(dtype=Dtype.FP8_W8A8))
        assert MOE not in families_of("qwen3-32b")
        assert MOE in families_of("deepseek-r1")


class TestAllFamilies:
    def test_each_family_has_its_problems(self):
        found = resolve_all("deepseek-r1", Serving(tp=8))
        for target in found:
            alone = resolve_target("deepseek-r1", Serving(tp=8), family=target.family)
            assert (target.problems, target.is_model) == (alone.problems, True)
        assert [target.family for target in found[:2]] == [MOE, ATTENTION]

    def test_a_family_that_is_left_out_is_said(self):
        found = resolve_all("gpt-oss-120b", Serving(tp=2))
        assert MOE not in [target.family for target in found]
        assert found[0].notes[0].startswith("left out a fused-MoE layer: gpt-oss-120b is stored as")

    def test_nothing_is_said_of_layers_that_a_model_cannot_have(self, subtests):
        """The class of the first four has none of them; that of the last has gated delta nets."""
        config = MODELS / "deepseek-r1" / "config.json"
        targets = ["deepseek-r1", str(config.parent), str(config), config.read_bytes()]
        for target in [*targets, "qwen3.8-2.4t-a95b"]:
            with subtests.test(str(target)[:60]):
                notes = [one for one in resolve_all(target, Serving())[0].notes if "left" in one]
                unknown = "qwen3.8" in str(target)
                assert (
                    any("no gated delta nets are known of qwen3.8" in n for n in notes) == unknown
                )
                assert not [n for n in notes if "Mamba" in n or "sparse" in n or "Kimi" in n]
        assert not [n for n in resolve_all("qwen3-32b", Serving())[0].notes if "experts" in n]

    def test_a_model_of_which_nothing_can_be_tuned_has_the_reasons_that_count(self):
        with pytest.raises(BadInput) as refused:
            resolve_all("deepseek-v4-flash", Serving())
        assert "- a fused-MoE layer: deepseek-v4-flash is stored as mxfp4" in str(refused.value)
        assert "delta" not in str(refused.value)
        config = b'{"architectures": ["Mamba2ForCausalLM"], "layer_types": ["mamba"]}'
        with pytest.raises(MalformedCheckpoint, match="Mamba-2 layers have no num_heads"):
            resolve_all(config, Serving(engine="vllm"), families()[3:])

    def test_a_size_that_does_not_divide_is_refused(self):
        with pytest.raises(IndivisibleShape):
            resolve_all("deepseek-r1", Serving(tp=3))

    def test_a_model_that_is_not_known_is_refused(self):
        with pytest.raises(UnknownModel, match="deepseek-r1"):
            resolve_all("deepsek-r1", Serving())


def test_a_target_has_the_class_of_its_model(tmp_path):
    preset = find_preset("nemotron-3-nano-30b-a3b")
    serving = Serving(engine="sglang", engine_version="0.5.16")
    found = resolve_target(preset.name, serving).server
    assert found.architecture == preset.architecture != ""
    assert {one.server for one in resolve_all(preset.name, serving)} == {found}
    config = b"""{"architectures": ["MixtralForCausalLM"], "num_local_experts": 8,
        "hidden_size": 64,
        "intermediate_size": 512, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"}"""
    assert resolve_target(config, Serving()).server.architecture == "MixtralForCausalLM"
    assert resolve_target(LAYER, Serving()).server == UNKNOWN_SERVER


def test_a_type_of_the_experts_is_never_dropped():
    serving = Serving(tp=2, dtype=Dtype.INT4_W4A16)
    found = resolve_all("qwen3.6-35b-a3b", serving)
    assert MOE not in {one.family for one in found}
    assert any("left out a fused-MoE layer: int4_w4a16 weights" in note for note in found[0].notes)


def test_what_a_release_makes_of_blocks_names_the_release():
    with pytest.raises(IndivisibleShape, match=r"nearest that works with sglang 0\.5\.16 is tp=2"):
        resolve_target("qwen3-30b-a3b-fp8", Serving("sglang", "0.5.16", tp=4))
