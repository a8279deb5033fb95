"""Models' attention from presets and config.json files, and the problems it divides into."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cases import parse_experts, resolve_attention
from draws import json_values
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices.table import find_device
from tuner.errors import BadProblem, IndivisibleShape, MalformedCheckpoint, TunerError
from tuner.families.attention.models import attention_problems
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.models.attention_json import attention_places, attention_shape
from tuner.models.config_json import read_model
from tuner.models.layer_counts import count_layers
from tuner.models.table import find_preset, presets
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import parse_problem

DATA = Path(__file__).parents[1] / "data" / "models"
FOLDERS = sorted(path.parent for path in DATA.glob("*/config.json"))
# Presets whose attention the engines' Triton kernels do not run, or of which no source has all
# sizes: special kernels (DeepSeek V4), layers of several kinds, a class's defaults alone.
WITHOUT = {
    *("a.x-k1", "deepseek-v4-flash", "deepseek-v4-flash-fp8", "deepseek-v4-pro"),
    *("deepseek-v4-pro-fp8", "deepseek-v4.1-flash", "dots.llm1", "glm-5.3-flash"),
    *("glm-5.3-flash-fp8", "hy4-preview", "kimi-k3", "ling-2.5-1t", "ling-2.6-1t"),
    *("ling-3.0-flash", "longcat-flash", "mistral-small-4-119b", "sarvam-30b", "solar-open-100b"),
    *("step-3.5-flash", "step-3.7-flash", "step-3.7-flash-fp8"),
}
KNOWN = [model for model in presets() if model.attention]


def config(**changes: object) -> dict[str, object]:
    """A small config.json of a model without experts."""
    fields: dict[str, object] = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 36,
        "max_position_embeddings": 40960,
    }
    return {k: v for k, v in (fields | changes).items() if v is not None}


def specs(text: str, tp: int, **options: object) -> list[str]:
    found = resolve_attention(text, tp=tp, **options)
    return [p.spec().replace(",dtype=bfloat16", "") for p in found.problems]


class TestPresets:
    def test_the_attention_of_every_other_preset_is_known(self):
        assert {model.name for model in presets()} - {model.name for model in KNOWN} == WITHOUT

    def test_every_preset_s_attention_is_sourced_and_divides(self, subtests):
        for model in KNOWN:
            with subtests.test(model.name):
                assert model.attention.source
                for problem in attention_problems(model):
                    assert parse_problem(problem.spec()) == problem

    def test_every_family_s_config_json_reads_as_its_preset(self, subtests):
        for folder in FOLDERS:
            with subtests.test(folder.name):
                preset, found = find_preset(folder.name).attention, read_model(folder).attention
                assert found == (replace(preset, source="") if preset else None)

    def test_an_unknown_shape_is_refused_by_name(self):
        model = replace(find_preset("mixtral-8x7b"), attention=None)
        with pytest.raises(BadProblem, match=r"mixtral-8x7b .*not known.*config\.json"):
            attention_problems(model)


class TestProblems:
    def test_latent_attention_has_two_forms_of_extend_and_one_of_decode(self):
        assert specs("deepseek-r1", 8) == [
            "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512",
            "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128",
            "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512",
        ]
        assert specs("glm-4.7-flash", 4)[1] == (
            "extend_attention:q_heads=5,kv_heads=5,Lq=256,Lv=256"
        )

    def test_data_parallel_attention_is_shared_by_fewer_ranks(self):
        assert specs("deepseek-r1", 16, dp=16) == specs("deepseek-r1", 1)
        assert specs("deepseek-r1", 16, dp=2) == specs("deepseek-r1", 8)
        with pytest.raises(IndivisibleShape, match="dp=3 does not divide tp=8; .* dp=2"):
            specs("deepseek-r1", 8, dp=3)
        with pytest.raises(BadProblem, match="start at 1"):
            specs("deepseek-r1", 8, dp=0)

    def test_grouped_heads(self):
        assert specs("qwen3-30b-a3b", 2) == [
            "extend_attention:q_heads=16,kv_heads=2,Lq=128,Lv=128",
            "decode_attention:q_heads=16,kv_heads=2,Lq=128,Lv=128",
        ]

    def test_a_window_is_one_more_extend(self):
        assert specs("gpt-oss-20b", 1) == [
            "extend_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,sinks",
            "extend_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,window=127,sinks",
            "decode_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,sinks",
        ]

    def test_layers_with_a_window_may_have_a_shape_of_their_own(self):
        assert specs("mimo-v2-flash", 4) == [
            "extend_attention:q_heads=16,kv_heads=1,Lq=192,Lv=128",
            "extend_attention:q_heads=16,kv_heads=2,Lq=192,Lv=128,window=128,sinks",
            "decode_attention:q_heads=16,kv_heads=1,Lq=192,Lv=128",
            "decode_attention:q_heads=16,kv_heads=2,Lq=192,Lv=128,sinks",
        ]
        assert specs("gemma-4-26b-a4b", 1)[:2] == [
            "extend_attention:q_heads=16,kv_heads=2,Lq=512,Lv=512",
            "extend_attention:q_heads=16,kv_heads=8,Lq=256,Lv=256,window=1023",
        ]

    def test_logits_are_capped(self):
        found = specs("grok-2", 8)
        assert found
        assert all("logit_cap=30" in spec for spec in found)

    def test_key_heads_are_held_by_several_ranks(self):
        found = resolve_attention("qwen3-30b-a3b", tp=16)
        assert {(p.q_heads, p.kv_heads) for p in found.problems} == {(2, 1)}
        assert "16 ranks share 4 key heads: 4 ranks have copies of each head" in found.notes

    def test_ranks_that_the_weights_are_not_laid_out_for_are_refused(self):
        """sglang stops there; releases before 0.5.17 also at fewer ranks."""
        for version, runs in (("0.5.23", (1, 2, 4)), ("0.5.16", (4,)), (None, (1, 2, 4))):
            for tp in (1, 2, 4, 8, 16):
                asked = {"tp": tp, "engine_version": version}
                if tp in runs:
                    assert resolve_attention("mimo-v2.5", **asked).problems
                    continue
                with pytest.raises(IndivisibleShape, match=f"{tp} ranks share .* give --tp 4, or"):
                    resolve_attention("mimo-v2.5", **asked)
        assert resolve_attention("mimo-v2.5", tp=8, dp=2).problems
        assert resolve_attention("mimo-v2-flash", tp=8).problems  # its weights are not merged

    def test_choices_reach_the_problems(self):
        found = resolve_attention(
            "deepseek-r1", tp=8, dtype=Dtype.FLOAT16, page_size=64, kv_splits=16
        )
        assert {(p.dtype, p.page_size) for p in found.problems} == {(Dtype.FLOAT16, 64)}
        assert [p.kv_splits for p in found.problems] == [None, None, 16]

    def test_quantised_weights_leave_attention_in_bfloat16(self):
        assert all(p.dtype is Dtype.BFLOAT16 for p in resolve_attention("deepseek-r1").problems)
        with pytest.raises(BadProblem, match="bfloat16 or float16, not fp8_w8a8"):
            resolve_attention("deepseek-r1", dtype=Dtype.FP8_W8A8)

    @pytest.mark.parametrize(
        ("name", "tp", "nearest"),
        [
            ("deepseek-r1", 3, 2),
            ("deepseek-r1", 1000, 128),
            ("qwen3-30b-a3b", 5, 4),
            ("glm-4.7-flash", 8, 4),
            ("llama-4-scout", 16, 8),
            ("llama-4-scout", 5, 4),  # divides 40 query heads, but not 8 key heads
            ("ernie-4.5-21b-a3b", 10, 4),
        ],
    )
    def test_a_remainder_is_refused_with_the_nearest_that_works(self, name, tp, nearest):
        with pytest.raises(IndivisibleShape, match=f"nearest that works is tp={nearest}$"):
            resolve_attention(name, tp=tp)
        assert resolve_attention(name, tp=nearest).problems

    @given(st.sampled_from(KNOWN), st.integers(1, 512))
    def test_a_rank_has_its_share_of_heads(self, model, tp):
        try:
            problems = attention_problems(model, tp)
        except IndivisibleShape as error:
            near = int(str(error).rpartition("=")[2])
            assert attention_problems(model, near)
            return
        assert model.attention is not None
        for problem in problems:
            assert problem.q_heads * tp in {kind.q_heads for kind in model.attention.layers}
            assert parse_problem(problem.spec()) == problem

    @pytest.mark.parametrize("tp", [0, -8])
    def test_sizes_start_at_one(self, tp):
        with pytest.raises(BadProblem, match="start at 1"):
            resolve_attention("deepseek-r1", tp=tp)


class TestNotes:
    def test_latent_attention_says_when_each_form_runs(self):
        assert any("192/128 if not" in n for n in resolve_attention("kimi-k2").notes)

    def test_splits_are_chosen_where_a_server_can_be_given_them(self):
        h200 = find_device("H200")
        found = resolve_attention("kimi-k2", tp=8, engine_version="0.5.16", device=h200)
        assert found.problems[-1].chooses_splits
        older = resolve_attention("kimi-k2", tp=8, engine_version="0.5.2", device=h200)
        assert older.problems[-1].kv_splits == 8
        assert not any("splits" in note for note in (*found.notes, *older.notes))

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("deepseek-v3.2", "sparse attention"),
            ("glm-5", "sparse attention"),
            ("lfm2-8b-a1b", "cannot run Lfm2MoeForCausalLM with its triton"),
            ("nemotron-3-nano-30b-a3b", "cannot run NemotronHForCausalLM with its triton"),
            ("gpt-oss-120b", "18 of its layers look back at most 127 tokens"),
            ("grok-2", "attn_temperature_len"),
        ],
    )
    def test_what_is_peculiar_to_a_class(self, name, words):
        assert any(words in note for note in resolve_attention(name).notes)


class TestNames:
    def test_a_problem_is_taken_as_it_is(self):
        text = "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
        found = resolve_attention(text, tp=3, kv_splits=4)
        assert found.problems == (
            Attention(AttentionPhase.EXTEND, 16, 1, 576, 512, Dtype.BFLOAT16),
        )

    def test_a_model_without_experts_has_attention(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(config()))
        found = resolve_attention(str(tmp_path), tp=8)
        assert {(p.q_heads, p.kv_heads, p.Lq) for p in found.problems} == {(4, 1, 128)}
        with pytest.raises(MalformedCheckpoint, match="not a mixture-of-experts model"):
            parse_experts((tmp_path / "config.json").read_bytes(), "x")

    def test_a_malformed_file_is_named(self, tmp_path):
        (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
        with pytest.raises(MalformedCheckpoint, match=r"config\.json: its attention has no num_at"):
            resolve_attention(str(tmp_path))


class TestConfigJson:
    def test_head_dim_is_the_hidden_size_s_share_where_none_is_named(self):
        assert attention_shape(config()).layers[0].head_dim == 128
        assert attention_shape(config(head_dim=64)).layers[0].head_dim == 64
        assert attention_shape(config(num_key_value_heads=None)).layers[0].kv_heads == 32

    @pytest.mark.parametrize(
        ("scaling", "tokens"),
        [
            (None, 40960),
            ({"factor": 4.0, "type": "yarn"}, 163840),
            ({"factor": 4.0, "original_max_position_embeddings": 8192}, 40960),
            ({"factor": 4.0, "rope_type": "llama3"}, 40960),
            ({"factor": "4"}, 40960),
        ],
    )
    def test_the_context_is_stretched_as_the_engine_stretches_it(self, scaling, tokens):
        assert attention_shape(config(rope_scaling=scaling)).context_length == tokens

    def test_float16_weights_have_float16_attention(self):
        assert attention_shape(config(torch_dtype="float16")).dtype is Dtype.FLOAT16
        assert attention_shape(config(torch_dtype="bfloat16")).dtype is Dtype.BFLOAT16

    @pytest.mark.parametrize("named", ["float32", None])  # None: as MiniMax-M2.5's config.json
    def test_sglang_runs_float32_and_what_is_not_named_in_float16(self, named):
        for architecture, dtype in (
            ("Qwen3ForCausalLM", Dtype.FLOAT16),
            ("Gemma2ForCausalLM", Dtype.BFLOAT16),
            ("GptOssForCausalLM", Dtype.BFLOAT16),
        ):
            fields = config(architectures=[architecture], torch_dtype=named, sliding_window=9)
            assert attention_shape(fields).dtype is dtype

    @pytest.mark.parametrize(
        ("architecture", "changes", "windows"),
        [
            ("Gemma2ForCausalLM", {"sliding_window": 4096}, [(0, 18), (4095, 18)]),
            ("Gemma3ForCausalLM", {"sliding_window": 512}, [(0, 6), (511, 30)]),
            (
                "Gemma3ForCausalLM",
                {"sliding_window": 512, "sliding_window_pattern": 4},
                [(0, 9), (511, 27)],
            ),
            (
                "GptOssForCausalLM",
                {"sliding_window": 8, "layer_types": ["sliding_attention"]},
                [(7, 1)],
            ),
            ("Qwen3ForCausalLM", {"sliding_window": 4096}, [(0, 36)]),
            ("MixtralForCausalLM", {"sliding_window": 4096}, [(0, 36)]),
        ],
    )
    def test_windows(self, architecture, changes, windows):
        shape = attention_shape(config(architectures=[architecture], **changes))
        assert [(kind.window, kind.count) for kind in shape.layers] == windows

    @pytest.mark.parametrize(
        ("changes", "places"),
        [
            (  # Llama 4, as newer releases of transformers write it
                {"layer_types": ["chunked_attention"] * 3 + ["full_attention"]},
                [0, 1, 2, 3],
            ),
            (  # Kimi Linear
                {
                    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
                    **{"v_head_dim": 128, "num_hidden_layers": 8},
                    "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4, 8]},
                },
                [3, 7],
            ),
            ({"layer_group_size": 8, "num_hidden_layers": 24}, [7, 15, 23]),  # Ling 2.5
            ({"layer_types": ["deepseek_sparse_attention"] * 2}, [0, 1]),  # GLM-5.2
            ({"layer_group_size": [1, 0, 1, 0], "num_hidden_layers": 4}, [1, 3]),
            ({"layer_group_size": 1, "num_hidden_layers": 2}, [0, 1]),
            ({"attn_type_list": [0, 0, 1, 0, 1]}, [2, 4]),  # MiniMax-M1
        ],
    )
    def test_layers_of_linear_attention_are_left_out(self, changes, places):
        fields = config(**changes)
        shape = attention_shape(fields)
        assert [kind.count for kind in shape.layers] == [len(places)]
        assert attention_places(fields, "Qwen3ForCausalLM", shape) == (places,)

    def test_layers_may_have_settings_of_their_own(self):
        """Nemotron Super 49B: some layers have no attention, others a key head for 8 heads."""
        own = [{"attention": {"no_op": at == 1, "n_heads_in_group": 8}} for at in range(4)]
        fields = config(architectures=["DeciLMForCausalLM"], num_key_value_heads=None)
        (found,) = attention_shape(fields | {"block_configs": own}).layers
        assert (found.kv_heads, found.count) == (4, 3)
        for groups, words in (((4, 8), "differs between layers"), ((24, 24), "does not divide 32")):
            own[0]["attention"]["n_heads_in_group"], own[2:] = groups[0], []
            own[1]["attention"] = {"n_heads_in_group": groups[1]}
            with pytest.raises(MalformedCheckpoint, match=f"n_heads_in_group.* {words}"):
                attention_shape(fields | {"block_configs": own})

    def test_a_class_may_have_its_own_columns_of_a_head(self):
        """As Gemma 3 12B's config.json, which does not name them: 3840 columns and 16 heads."""
        sizes = {"hidden_size": 3840, "num_attention_heads": 16, "sliding_window": 1024}
        for architecture, columns in (
            ("Gemma3ForConditionalGeneration", 256),
            ("GptOssForCausalLM", 64),
            ("MixtralForCausalLM", 240),
        ):
            found = attention_shape(config(architectures=[architecture], **sizes)).layers
            assert {kind.head_dim for kind in found} == {columns}

    @pytest.mark.parametrize(
        ("changes", "cap"),
        [
            ({"architectures": ["Grok1ModelForCausalLM"]}, 30.0),
            ({"architectures": ["Grok1ForCausalLM"], "attn_logit_softcapping": -1}, 0.0),
            (
                {
                    "architectures": ["Gemma2ForCausalLM"],
                    "attn_logit_softcapping": 50.0,
                    "sliding_window": 9,
                },
                50.0,
            ),
            ({"attn_logit_softcapping": 50.0}, 0.0),  # a class that does not read it
        ],
    )
    def test_logit_caps(self, changes, cap):
        assert attention_shape(config(**changes)).logit_cap == cap

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"num_attention_heads": None}, "no num_attention_heads"),
            ({"num_attention_heads": "32"}, "should be a whole number"),
            ({"num_attention_heads": 1 << 20}, "more than the 4096"),
            (
                {"architectures": ["LlamaForCausalLM"], "hidden_size": 4097},
                "do not divide hidden_size 4097",
            ),
            ({"architectures": ["LlamaForCausalLM"], "hidden_size": None}, "no hidden_size"),
            ({"kv_lora_rank": 512}, "no qk_nope_head_dim"),
            ({"architectures": ["GptOssForCausalLM"]}, "no sliding_window"),
            ({"architectures": ["GptOssForCausalLM"], "sliding_window": 1}, "more than 1, not 1"),
            ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding layers"),
            ({"architectures": ["DeepseekV4ForCausalLM"]}, "attention kernels of its own"),
            ({"architectures": ["HYV4ForCausalLM"]}, "attention kernels of its own"),
            (
                {"architectures": ["Grok1ForCausalLM"], "attn_logit_softcapping": 1e300},
                "should be a number",
            ),
            (
                {"architectures": ["Grok1ForCausalLM"], "attn_logit_softcapping_method": "exp"},
                "'exp' is not known",
            ),
        ],
    )
    def test_what_cannot_be_read_is_malformed(self, changes, words):
        with pytest.raises(MalformedCheckpoint, match=words) as caught:
            attention_shape(config(**changes))
        assert "\n" not in str(caught.value)

    def test_experts_are_read_where_attention_cannot_be(self):
        fields = json.loads((DATA / "dbrx" / "config.json").read_text()) | {"n_heads": None}
        model = parse_experts(json.dumps(fields).encode(), "x")
        assert model.attention is None
        with pytest.raises(MalformedCheckpoint, match="no num_attention_heads"):
            attention_problems(model)


WORDS = [
    *("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim", "hidden_size"),
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "attn_config", "text_config"),
    *("layer_types", "hybrid_layer_pattern", "sliding_window", "sliding_window_size"),
    *("attn_layer_period", "attn_layer_offset", "full_attention_interval", "num_hidden_layers"),
    *("rope_scaling", "max_position_embeddings", "attn_logit_softcapping", "global_head_dim"),
    *("sliding_window_pattern", "swa_head_dim", "torch_dtype", "full_attn_idxs"),
    *("linear_attn_config", "layer_group_size", "attn_type_list"),
]


@given(
    st.sampled_from(
        [
            *("Qwen3ForCausalLM", "GptOssForCausalLM", "Gemma2ForCausalLM", "Grok1ForCausalLM"),
            *("MiMoV2FlashForCausalLM", "Gemma4ForCausalLM", "DeepseekV3ForCausalLM"),
        ]
    ),
    st.fixed_dictionaries({}, optional=dict.fromkeys(WORDS, json_values | st.integers(0, 600))),
    st.integers(1, 64),
)
def test_any_config_json_is_problems_or_one_of_the_tuner_s_errors(architecture, changes, tp):
    fields = config(architectures=[architecture], sliding_window=9) | changes
    try:
        shape = attention_shape(fields)
        problems = attention_problems(
            replace(find_preset("dbrx"), attention=shape, architecture=architecture), tp
        )
    except TunerError as error:
        assert "\n" not in str(error)
        return
    assert all(parse_problem(problem.spec()) == problem for problem in problems)


@pytest.mark.parametrize("pattern", [4, "LLLG"])  # Cohere 2's and EXAONE 4's, without layer_types
def test_a_pattern_says_that_layers_have_a_window(pattern):
    fields = {
        "architectures": ["Cohere2ForCausalLM"],
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "sliding_window": 4096,
        "sliding_window_pattern": pattern,
    }
    with pytest.raises(MalformedCheckpoint, match="sliding layers of Cohere2ForCausalLM is not"):
        attention_shape(fields)
    assert count_layers(fields, 1) == (8, 24)
    assert count_layers({**fields, "sliding_window_pattern": None}, 1) == (32, 0)
