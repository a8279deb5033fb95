"""Models from presets, config.json files and warning lines, and the problems they divide into."""

import json
from dataclasses import replace
from itertools import product
from operator import attrgetter
from pathlib import Path

import pytest
from cases import L40S, parse_experts, problems_of, read_experts, resolve
from checkpoints import config_json as config
from draws import json_values
from hypothesis import given
from hypothesis import strategies as st

from tuner.bindings.sglang.fused_moe import parse_config_name
from tuner.devices.table import find_device
from tuner.errors import (
    BadInput,
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    TunerError,
    UnknownModel,
)
from tuner.families.fused_moe import models
from tuner.families.fused_moe.engine import MoeFileKey, format_file_name
from tuner.families.fused_moe.models import moe_problem
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.models.config_json import parse_model
from tuner.models.serving import Note, Serving
from tuner.models.table import find_model, find_preset, presets
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import find_family
from tuner.targets import TuningTarget, only_problem

DATA = Path(__file__).parents[1] / "data"
MODELS = sorted(path.parent for path in (DATA / "models").glob("*/config.json"))
WARNING = (DATA / "l40s-missing-config.log").read_text()
INT8, FP8, INT4 = Dtype.INT8_W8A8, Dtype.FP8_W8A8, Dtype.INT4_W4A16


NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}


class TestPresets:
    def test_there_are_at_least_20_with_sources(self):
        assert len(presets()) >= 20
        for model in presets():
            assert "config.json" in model.source
            assert model.hidden > 1
            experts = (model.E, model.intermediate, model.top_k)
            assert all(n > 0 for n in experts) and model.top_k <= model.E or not any(experts)
            assert bool(model.n_shared_experts) == bool(model.shared_intermediate)

    def test_names_and_aliases_name_one_model_each(self):
        names = [name for m in presets() for name in (m.name, *m.aliases)]
        assert len(names) == len(set(names))
        for model in presets():
            assert all(find_preset(name) is model for name in (model.name, *model.aliases))

    @pytest.mark.parametrize(
        "text", ["deepseek-r1", "DeepSeek-R1", "deepseek_r1", "deepseek-ai/DeepSeek-R1"]
    )
    def test_spelling_is_lenient(self, text):
        assert find_model(text).name == "deepseek-r1"

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            (("nowhere/deepseek-r9", "x\0y", "d" * 9999, ""), ""),
            (("deepsek-r1",), "did you mean 'deepseek-r1'"),
            (("Qwen3-235B-A22B-FP16",), "did you mean 'qwen3-235b-a22b'"),  # another ending
            (("Hunyuan-A14B", "DeepSeek-V5-Flash", "qwen3.9-35b-a3b", "glm-4.8"), "no suggestion"),
            (
                ("/nope/DeepSeek-R1", "./DeepSeek-R1", "~/DeepSeek-R1"),
                "nothing can be read there: give the path of a config.json",
            ),
        ],
    )
    def test_an_unknown_model_is_refused_in_one_line(self, texts, said):
        for text, find in product(texts, (find_model, find_preset)):
            with pytest.raises(UnknownModel) as caught:
                find(text)
            told = str(caught.value)
            assert "\n" not in told and len(told) < 400
            assert "did you mean" not in told if said == "no suggestion" else said in told

    def test_every_preset_is_a_problem(self, subtests):
        for model in presets():
            if model.dtype and model.E:
                with subtests.test(model.name):
                    problem = moe_problem(model)
                    assert problem.gemm_shape(Gemm.DOWN) == (model.hidden, model.intermediate)

    def test_a_preset_without_experts_is_refused(self, subtests):
        for model in presets():
            if model.dtype and not model.E:
                said = f"{model.name} .* has no experts"
                with subtests.test(model.name), pytest.raises(LacksLayers, match=said):
                    moe_problem(model)


class TestConfigJson:
    def test_every_family_reads_as_its_preset(self, subtests):
        same = attrgetter(
            *("architecture", "E", "intermediate", "hidden", "top_k", "n_shared_experts"),
            *("shared_intermediate", "dtype", "block_shape", "per_channel_quant"),
        )
        for folder in MODELS:
            with subtests.test(folder.name):
                assert same(read_experts(folder)) == same(find_preset(folder.name))

    def test_folder_and_file_are_the_same(self, monkeypatch):
        folder = DATA / "models" / "deepseek-r1"
        assert read_experts(folder) == read_experts(folder / "config.json")
        assert find_model(str(folder)).source == ""  # read, not the preset
        monkeypatch.chdir(folder.parent)
        assert find_model("./deepseek-r1").source == ""
        assert find_model("deepseek-r1").source != ""
        monkeypatch.chdir(folder.parent / "dbrx")
        assert find_model("config.json").architecture == "DbrxForCausalLM"

    def test_experts_for_text_and_for_images(self):
        """ERNIE 4.5 VL, whose engines make a layer of each."""
        data = config(
            architectures=["Ernie4_5_VLMoeForConditionalGeneration"],
            num_experts=None,
            moe_num_experts=[64, 64],
            moe_intermediate_size=[1536, 512],
            moe_num_shared_experts=2,
        )
        found = models.problems(parse_model(data, "x"), Serving(tp=4))
        assert [(one.E, one.N) for one in found.problems] == [(64, 384), (64, 128)]
        assert "experts for text are 1536 wide, experts for images 512" in found.notes
        target = TuningTarget(find_family("fused_moe:E=1"), found.problems, (), True)
        with pytest.raises(BadInput, match="name fused_moe:E=64,N=384.* and fused_moe:E=64,N=128"):
            only_problem(target)

    # Fields of families that no preset has.
    @pytest.mark.parametrize(
        "words",
        [
            {"num_shared_experts": 2},  # Bailing (Ling)
            # HYV3
            {"moe_intermediate_size": None, "expert_hidden_dim": 768, "intermediate_size": 9},
            {
                "num_experts": None,
                "n_routed_experts": 128,
                "moe_latent_size": 2048,
                "hidden_size": 9,
            },
            {"num_experts_per_tok": None, "top_k_experts": 8},  # Gemma 4
            {"num_experts_per_tok": None, "num_experts_per_token": 8},  # Kimi K3
            # Hunyuan
            {"num_experts_per_tok": None, "moe_topk": [8] * 4, "num_shared_expert": [2] * 4},
            {
                "num_experts": None,
                "moe_num_experts": 128,
                "num_experts_per_tok": None,
                "moe_top_k": 8,
            },
            # Qwen3-Omni
            {
                "moe_intermediate_size": None,
                "thinker_config": {"text_config": {"moe_intermediate_size": 768}},
            },
        ],
    )
    def test_other_words_for_the_same_sizes(self, words):
        model = parse_experts(config(**words), "x")
        assert (model.E, model.intermediate, model.hidden, model.top_k) == (128, 768, 2048, 8)
        shared = 2 if any("shared" in word for word in words) else 0
        assert (model.n_shared_experts, model.shared_intermediate) == (shared, shared * 768)

    def test_quantisation(self, subtests):
        for row in json.loads((DATA / "quantizations.json").read_text()):
            with subtests.test(str(row)):
                model = parse_experts(config(row["quantization_config"]), "x")
                dtype, block = model.dtype, model.block_shape
                assert (dtype and dtype.value, block and [*block]) == (
                    row["dtype"],
                    row.get("block"),
                )
                assert model.per_channel_quant is row.get("per_channel", False)

    def test_experts_of_drafts_have_a_group_of_their_own(self):
        """As RedHatAI's GLM-5.3-Flash-NVFP4: fp8 in the layer behind the model's 46."""
        experts = r"re:.*\.layers\.{}\.mlp\.experts\..*(gate|up|down)_proj$"
        draft = {"weights": FLOAT8, "input_activations": FLOAT8, "targets": [experts.format("46")]}
        rest = {"weights": NVFP4, "targets": [experts.format("(?:[1-9]|[1-3][0-9]|4[0-5])")]}
        for groups in ({"a": draft, "b": rest}, {"a": rest, "b": draft}):
            quant = {"quant_method": "compressed-tensors", "config_groups": groups}
            model = parse_experts(config(quant, num_hidden_layers=46), "x")
            assert model.quantization == "compressed-tensors float4 with 16-bit activations"

    @pytest.mark.parametrize(
        ("rules", "dtype", "doubt"),
        [
            ({r"-:.*mlp\.experts.*": {}}, Dtype.BFLOAT16, ""),
            ({r"-:.*\.[01]\.mlp\.experts.*": {}}, INT4, "experts of 2 of 4 layers are not"),
            ({r"+:.*layers\.1\.mlp\.experts": {"bits": 8}}, INT4, "experts of 1 of 4 layers have"),
            ({r".*layers\.1\.mlp\.experts": {"bits": 8}}, INT4, "experts of 1 of 4 layers have"),
            ({"-:.*shared_expert": {}, "lm_head": True, "+:.*attn": {"bits": 8}}, INT4, ""),
        ],
    )
    def test_dynamic_rules_of_gptq(self, rules, dtype, doubt):
        quant = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": rules}
        model = parse_experts(config(quant, num_hidden_layers=4), "x")
        assert (model.dtype, bool(model.doubt)) == (dtype, bool(doubt))
        assert doubt in model.doubt

    def test_a_page_s_source_is_read(self):
        escaped = config().replace(b'"', b"&quot;")
        assert parse_experts(escaped, "x") == parse_experts(config(), "x")

    def test_float16_weights(self):
        assert parse_experts(config(torch_dtype="float16"), "x").dtype is Dtype.FLOAT16

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[1]", "not a JSON object"),
            (b"{}", "architectures"),
            (b"[" * 100_000, "nested too deeply"),
            (b'{"a": NaN}', "NaN is not a number"),
            (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
            (config(num_experts=None), "does not say how many experts there are"),
            (config(num_experts_per_tok=None), "it names no top_k of its experts"),
            (config(hidden_size=None), "it names no hidden of its experts"),
            (config(moe_intermediate_size=None, intermediate_size=6144), "no intermediate of its"),
            (config(num_experts=[8, 16]), "num_experts differs between layers"),
            (config(num_experts="128"), "num_experts should be a whole number"),
            (config(num_experts=True), "num_experts should be a whole number"),
            (config(num_experts=1e9), "num_experts should be a whole number"),
            (config(num_experts=-1), "num_experts should be a whole number"),
            (config(hidden_size=1 << 60), "hidden_size should be a whole number"),
            (config({"quant_method": "fp8", "weight_block_size": [128]}), "block"),
            (config({"quant_method": "x", "config_groups": {}}), "no weights"),
            (config([1]), "quantization_config"),
        ],
    )
    def test_what_cannot_be_read_is_malformed(self, data, words):
        with pytest.raises(MalformedCheckpoint) as caught:
            parse_experts(data, "x")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        "words",
        [
            {"num_experts": 0},
            {"num_experts": 1, "num_experts_per_tok": 1, "architectures": ["JambaForCausalLM"]},
            {
                "num_experts": None,
                "num_experts_per_tok": None,
                "architectures": ["Qwen3ForCausalLM"],
            },
        ],
    )
    def test_a_model_without_experts_is_no_malformed_model(self, words):
        with pytest.raises(LacksLayers, match="has no experts .*: not a mixture-of-experts model"):
            parse_experts(config(**words), "x")

    def test_files_that_cannot_be_read(self, tmp_path):
        with pytest.raises(MalformedCheckpoint, match="No such file"):
            read_experts(tmp_path)
        (tmp_path / "config.json").write_bytes(b" " * ((16 << 20) + 1))
        with pytest.raises(MalformedCheckpoint, match="larger than 16 MiB"):
            read_experts(tmp_path)


WORDS = [
    *("architectures", "num_experts", "hidden_size", "moe_intermediate_size", "text_config"),
    *("num_experts_per_tok", "quantization_config", "n_shared_experts", "torch_dtype"),
]
QUANT_WORDS = [
    *("quant_method", "weight_block_size", "config_groups", "bits", "group_size", "quant_algo"),
    *("weights", "input_activations", "num_bits", "type", "strategy", "block_structure"),
]
METHODS = st.sampled_from(
    ["fp8", "gptq", "awq", "blockwise_int8", "modelopt", "compressed-tensors"]
)
quantizations = st.dictionaries(
    st.sampled_from(QUANT_WORDS),
    json_values
    | METHODS
    | st.dictionaries(
        st.text(max_size=3),
        st.dictionaries(st.sampled_from(QUANT_WORDS), json_values, max_size=5),
        max_size=2,
    ),
)


class TestAnyInput:
    @given(st.binary(max_size=200))
    def test_bytes(self, data):
        _only_tuner_errors(data)

    @given(st.dictionaries(st.sampled_from(WORDS), json_values))
    def test_objects(self, value):
        _only_tuner_errors(json.dumps(value).encode())

    @given(quantizations, st.fixed_dictionaries({}, optional=dict.fromkeys(WORDS[1:], json_values)))
    def test_near_misses(self, quantization, changes):
        changes.pop("quantization_config", None)
        _only_tuner_errors(config(quantization, **changes))

    @given(st.text(max_size=100))
    def test_names(self, text):
        with pytest.raises(TunerError):
            resolve(f"?{text}")


def _only_tuner_errors(data: bytes) -> None:
    try:
        moe_problem(parse_experts(data, "x"))
    except TunerError as error:
        assert "\n" not in str(error)


class TestDivision:
    @pytest.mark.parametrize(
        ("name", "tp", "ep", "dtype", "shape"),
        [
            ("deepseek-r1", 1, 1, None, (256, 2048)),
            ("deepseek-r1", 8, 1, None, (256, 256)),
            ("deepseek-r1", 16, 1, None, (256, 128)),
            ("deepseek-r1", 16, 2, None, (128, 256)),
            ("deepseek-r1", 8, 8, None, (32, 2048)),
            ("deepseek-r1", 32, 1, INT8, (256, 64)),
            ("qwen3-235b-a22b", 8, 2, None, (64, 384)),
            ("mixtral-8x7b", 2, 1, None, (8, 7168)),
            ("kimi-k2.5", 8, 1, None, (384, 256)),
            ("gpt-oss-20b", 4, 1, Dtype.BFLOAT16, (32, 720)),
        ],
    )
    def test_as_the_engine_divides(self, name, tp, ep, dtype, shape):
        problem = moe_problem(find_preset(name), tp, ep, dtype=dtype)
        assert shape == (problem.E, problem.N)

    @pytest.mark.parametrize(
        ("name", "tp", "ep", "nearest"),
        [
            ("deepseek-r1", 32, 1, "tp=16"),  # N=64 within 128 x 128 blocks
            ("deepseek-r1", 64, 2, "tp=32"),
            ("deepseek-r1", 3, 1, "tp=2"),
            ("qwen3-30b-a3b-fp8", 4, 1, "tp=2"),
            ("qwen3-30b-a3b", 1024, 1, "tp=256"),
            ("deepseek-r1", 8, 3, "ep=2"),
            ("qwen1.5-moe-a2.7b", 8, 8, "ep=4"),
        ],
    )
    def test_a_remainder_is_refused_with_the_nearest_that_works(self, name, tp, ep, nearest):
        model = find_preset(name)
        with pytest.raises(IndivisibleShape, match=f"nearest .* is {nearest}(; with|$)") as refused:
            moe_problem(model, tp, ep)
        if f"add --ep {tp}" in str(refused.value):
            assert model.intermediate == moe_problem(model, tp, tp).N
        if nearest.startswith("tp"):
            assert moe_problem(model, int(nearest[3:]), ep).N
        else:
            assert moe_problem(model, tp, int(nearest[3:])).N

    @pytest.mark.parametrize(("tp", "ep"), [(0, 1), (8, 0), (-8, 1)])
    def test_sizes_start_at_one(self, tp, ep):
        with pytest.raises(BadProblem, match="start at 1"):
            moe_problem(find_preset("deepseek-r1"), tp, ep)

    def test_every_second_layer_of_llama_4_maverick_has_experts(self):
        """Both of its classes: 128 experts of 8 ranks fit H200s."""
        whole = find_preset("llama-4-maverick")
        for name in ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"):
            model = replace(whole, architecture=name)
            assert not models.too_large(model, moe_problem(model, 8), find_device("H200"))

    def test_another_dtype_drops_the_checkpoint_s_blocks(self):
        model = find_preset("deepseek-r1")
        assert moe_problem(model, 8, dtype=FP8).block_shape == (128, 128)
        channel = moe_problem(model, 8, dtype=INT8)
        assert (channel.block_shape, channel.per_channel_quant) == (None, True)
        blocks = moe_problem(model, 8, dtype=INT8, block_shape=(128, 128))
        assert (blocks.block_shape, blocks.per_channel_quant) == ((128, 128), False)
        assert moe_problem(model, 8, dtype=INT4, block_shape=(0, 128)).block_shape == (0, 128)


class TestWarningLine:
    def test_the_user_s_line(self):
        found = resolve(WARNING)
        assert found.problem == FusedMoe(256, 64, 7168, 8, INT8, per_channel_quant=True)
        assert found.device_name == "NVIDIA_L40S"
        assert "deepseek-r1-channel-int8 at tp=32, if it is that model" in found.notes[0]
        assert found.notes[1] == "int8_w8a8 without blocks is quantised per channel"

    def test_every_part_of_a_name(self):
        text = (
            "Config file not found at /x/sglang/srt/layers/moe/moe_runner/triton_utils/configs/"
            "triton_3_6_0/E=257,N=256,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,"
            "block_shape=[128, 128],per_channel_quant=True_down.json. Fallback"
        )
        missing = parse_config_name(text)
        assert (missing.E, missing.N, missing.device_name) == (257, 256, "NVIDIA_H20-3e")
        assert (missing.dtype, missing.block_shape) == (FP8, (128, 128))
        assert missing.per_channel_quant and missing.gemm is Gemm.DOWN and missing.before is None
        assert missing.file_name.startswith("E=257") and missing.file_name.endswith("_down.json")

    @pytest.mark.parametrize(
        ("folder", "before"),
        [
            ("moe/fused_moe_triton/configs/", (0, 4, 7)),
            ("moe/fused_moe_triton/configs/triton_3_4_0/", (0, 5, 11)),
            ("moe/moe_runner/triton_utils/configs/triton_3_6_0/", None),
            ("", None),
        ],
    )
    def test_the_folder_tells_the_engine_s_age(self, folder, before):
        missing = parse_config_name(f"{folder}E=256,N=64,device_name=NVIDIA_L40S.json")
        assert missing.before == before

    @pytest.mark.parametrize(
        ("engine", "folder"),
        [
            ("sglang", "moe/moe_runner/triton_utils/configs/triton_3_8_0"),
            ("sglang", "moe/fused_moe_triton/configs/triton_3_5_1"),  # of builds that kept it
            ("sglang", "moe/fused_moe_triton/configs/triton_3_8_0"),
            ("vllm", "fused_moe/configs"),
        ],
    )
    @pytest.mark.parametrize("options", [{}, {"fuse_shared": False}], ids=["", "apart"])
    def test_the_layer_of_a_named_model_is_found_by_its_file_s_name(
        self, subtests, engine, folder, options
    ):
        asked = {"engine": engine, "device": L40S, "options": options}
        for model in [model for model in presets() if model.E]:
            for tp in (2, 8):
                try:
                    (problem, *_) = problems_of(
                        models, model.name, Serving(tp=tp, **asked)
                    ).problems
                except (BadProblem, IndivisibleShape):
                    continue
                packed = engine == "sglang" and problem.dtype is Dtype.INT4_W4A16
                key = MoeFileKey(
                    E=problem.E,
                    N=problem.N // (2 if packed else 1),
                    device="NVIDIA_L40S",
                    dtype=None if problem.dtype.weight_bits == 16 else problem.dtype.value,
                    block_shape=problem.block_shape,
                    per_channel_quant=engine == "sglang" and problem.per_channel_quant,
                )
                name = format_file_name(key, ", " if engine == "sglang" else ",")
                serving = Serving(**asked, model=model.name, ranks=(tp, tp))
                with subtests.test(model.name, tp=tp):
                    found = problems_of(models, f"/x/{folder}/{name}", serving).problems
                    assert found == (problem,)

    def test_int4_counts_bytes_in_sglang_and_elements_in_vllm(self):
        line = "Config file not found at /x/E=8,N=7168,device_name=NVIDIA_L40S,dtype=int4_w4a16"
        sizes = {"hidden_size": 4096, "top_k": 2, "block_shape": (0, 128)}
        found = {
            engine: problems_of(models, f"{line}.json", Serving(engine=engine, options=sizes))
            .problems[0]
            .N
            for engine in ("sglang", "vllm")
        }
        assert found == {"sglang": 14336, "vllm": 7168}

    def test_vllm_names_every_place_it_looked_at_and_fuses_no_shared_experts(self):
        name = "E=128,N=384,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json"
        line = f"Config file not found at /tuned/{name}, /usr/lib/vllm/configs/{name}"
        sizes = {"hidden_size": 4096, "top_k": 8}
        (problem,) = problems_of(models, line, Serving(engine="vllm", options=sizes)).problems
        assert (problem.E, problem.N, problem.block_shape) == (128, 384, (128, 128))
        (deepseek,) = problems_of(
            models, "deepseek-r1", Serving("vllm", device=L40S, tp=8)
        ).problems
        assert (deepseek.E, deepseek.top_k) == (256, 8)
        with pytest.raises(BadProblem, match="only AITER"):
            fused = Serving(engine="vllm", device=L40S, tp=8, options={"fuse_shared": True})
            problems_of(models, "deepseek-r1", fused)

    def test_fused_experts_are_matched_too(self):
        name = "E=161,N=192,device_name=NVIDIA_H200.json"
        found = resolve(f"fused_moe_triton/configs/triton_3_4_0/{name}")
        assert (found.problem.K, found.problem.top_k) == (5120, 9)  # GLM-4.5 at tp=8

    def test_an_ambiguous_line_names_the_models_and_the_options(self):
        with pytest.raises(
            BadProblem, match=r"--hidden-size and --top-k .*qwen3-30b-a3b \(2048, 8\)"
        ):
            resolve("E=128,N=192,device_name=NVIDIA_L40S.json")
        line = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json"
        assert resolve(line, hidden_size=6144).problem.top_k == 8
        given_both = resolve(line, hidden_size=1234, top_k=3).problem
        assert (given_both.K, given_both.top_k) == (1234, 3)

    @pytest.mark.parametrize(
        ("line", "dtype", "words"),
        [
            ("E=8,N=7168,device_name=NVIDIA_L40S,dtype=fp9.json", None, "unknown dtype 'fp9'"),
            ("E=8,N=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json", INT8, "not int8_w8a8"),
            ("E=7,N=11,device_name=NVIDIA_L40S.json", None, "--hidden-size and --top-k"),
            ("gpt-oss-20b", None, "mxfp4.*--dtype bfloat16"),  # what could run is named
            ("E=0,N=64,device_name=NVIDIA_L40S.json", None, "--hidden-size"),
            ("E=8,N=0,device_name=NVIDIA_L40S.json", None, "--hidden-size"),
        ],
    )
    def test_bad_lines_and_models_that_no_kernel_runs(self, line, dtype, words):
        with pytest.raises(BadProblem, match=words):
            resolve(line, dtype=dtype)

    def test_a_line_without_a_file_name_is_no_warning(self):
        assert parse_config_name("Using default MoE config.") is None


def test_a_problem_is_taken_as_it_is():
    spec = "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant"
    assert resolve(spec).problem.spec() == spec


@pytest.mark.parametrize(
    ("model", "dtype", "says", "never"),
    [
        ("qwen3-30b-a3b", Dtype.FP8_W8A8, "qwen3-30b-a3b-fp8 has blocks of 128x128: name that", ""),
        ("glm-4.6", Dtype.FP8_W8A8, "glm-4.6-fp8 has a scale for each channel: name that", ""),
        ("deepseek-r1", Dtype.INT8_W8A8, "no blocks, like deepseek-r1-channel-int8;", "name that"),
        ("kimi-k2-thinking", Dtype.FP8_W8A8, "is int4_w4a16 in groups of 32;", "name it"),
    ],
)  # fmt: skip
def test_another_dtype_than_the_checkpoints_says_what_is_assumed(model, dtype, says, never):
    found = problems_of(models, model, Serving(tp=2, dtype=dtype))
    (note,) = [note for note in found.notes if "tuned with" in note]
    assert "no blocks" in note and says in note
    assert [problem.block_shape for problem in found.problems] == [None]
    assert "--block-shape 128x128" in note and not (never and never in note)
    assert "block_shape=[128, 128]" in note.api


def test_weight_only_types_have_groups_and_a_scale_for_each_channel():
    def taken(**options) -> Note:
        serving = Serving(tp=2, dtype=Dtype.INT8_W8A16, options=options)
        found = problems_of(models, "llama-4-scout", serving)
        (note,) = [note for note in found.notes if "tuned with" in note]
        return note

    assert "tuned with a scale for each channel and no groups; for a checkpoint with" in taken()
    assert "--block-shape 0x128" in taken() and "block_shape=[0, 128]" in taken().api
    assert taken(block_shape=(0, 64)).endswith("int8_w8a16 is tuned with groups of 64, as asked")


def test_the_checkpoints_own_dtype_and_blocks_that_are_asked_for_need_no_such_words():
    own = problems_of(models, "deepseek-r1", Serving(tp=2, dtype=Dtype.FP8_W8A8))
    assert own.problems[0].block_shape == (128, 128)
    asked = Serving(tp=2, dtype=Dtype.FP8_W8A8, options={"block_shape": (128, 128)})
    found = problems_of(models, "qwen3-30b-a3b", asked)
    assert found.problems[0].block_shape == (128, 128)
    assert not [note for note in own.notes if "tuned with" in note]
    (note,) = [note for note in found.notes if "tuned with" in note]
    assert note.endswith("is tuned with blocks of 128x128, as asked")
