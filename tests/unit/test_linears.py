"""Linear layers from presets and config.json files, and what one rank has of each."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import config_json
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.errors import BadProblem, IndivisibleShape, MalformedCheckpoint, TunerError
from tuner.models.config_json import parse_model, read_model
from tuner.models.linears import Split, why_unread
from tuner.models.linears_json import sparse_places
from tuner.models.model import Model
from tuner.models.quantization import Quantization
from tuner.models.rank_linears import RankLinear, Ranks, known_linears, linear_layers, refuses
from tuner.models.table import find_preset, presets
from tuner.problems.dtypes import Dtype

DATA = Path(__file__).parents[1] / "data"
KNOWN = [model for model in presets() if model.linears]
FOLDERS = sorted(
    path.parent
    for path in DATA.glob("*models/*/config.json")
    if path.parent.name in {model.name for model in KNOWN}
)
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT8_CHANNELS = Quantization("w8a8_int8", Dtype.INT8_W8A8, per_channel_quant=True)

# The published shapes of these models: (N, K) of one rank.
TABLE = [
    ("deepseek-r1", 1, "2112,7168 24576,1536 32768,512 7168,16384 36864,7168 7168,18432 4096,7168 "
     "7168,2048"),
    ("deepseek-r1", 8, "2112,7168 3072,1536 4096,512 7168,2048 4608,7168 7168,2304 512,7168 "
     "7168,256"),
    ("deepseek-v3", 16, "2112,7168 1536,1536 2048,512 7168,1024 2304,7168 7168,1152 256,7168 "
     "7168,128"),
    ("qwen3-32b-fp8", 1, "10240,5120 5120,8192 51200,5120 5120,25600"),
    ("qwen3-32b-fp8", 2, "5120,5120 5120,4096 25600,5120 5120,12800"),
    ("qwen3-30b-a3b-fp8", 1, "5120,2048 2048,4096"),
    ("qwen3-235b-a22b-fp8", 1, "9216,4096 4096,8192"),
    ("kimi-k2", 8, "2112,7168 1536,1536 2048,512 7168,1024 4608,7168 7168,2304 512,7168 7168,256"),
    ("llama-3.3-70b-fp8-dynamic", 4, "2560,8192 8192,2048 14336,8192 8192,7168"),
]  # fmt: skip


def config(quantization: object = BLOCKS, **changes: object) -> bytes:
    """A small config.json of a model without experts: Qwen3-8B's sizes."""
    dense: dict[str, object] = {
        **dict.fromkeys(("num_experts", "moe_intermediate_size", "num_experts_per_tok")),
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 36,
    }
    return config_json(quantization, **dense | changes)


def of_rank(model: Model, **ranks: object) -> dict[str, RankLinear]:
    found = linear_layers(model, Ranks(**ranks))
    return {layer.name: layer for layer in found}


def shape(layer: RankLinear) -> tuple[int, int]:
    return layer.N, layer.K


def read(quantization: object = BLOCKS, **changes: object) -> Model:
    model = parse_model(config(quantization, **changes), "x")
    known_linears(model)
    return model


def assert_whole(model: Model, tp: int) -> None:
    """What the ranks have of each layer is the layer, or its division is refused."""
    try:
        found = linear_layers(model, Ranks(tp=tp))
    except IndivisibleShape:
        assert any(refuses(layer, Ranks(tp=tp)) for layer in model.linears.layers)
        return
    for whole, one in zip(model.linears.layers, found, strict=True):
        # Ranks that hold a copy of a key head hold what another rank holds.
        N = sum(
            part.size * (max(1, tp // part.heads) if part.heads else 1) for part in whole.columns
        )
        assert one.N * (tp if whole.split is Split.COLUMN else 1) == N
        assert one.K * (tp if whole.split is Split.ROW else 1) == whole.K


class TestTable:
    @pytest.mark.parametrize(("name", "tp", "shapes"), TABLE)
    def test_published_shapes(self, name, tp, shapes):
        found = linear_layers(find_preset(name), Ranks(tp=tp))
        assert " ".join(f"{layer.N},{layer.K}" for layer in found) == shapes
        assert not any(layer.why for layer in found)

    def test_gated_attention_and_delta_nets(self):
        # Qwen3.8-27B-FP8, whose shapes are those of Qwen3.5-27B, at TP 2.
        found = of_rank(read_model(DATA / "dense_models" / "qwen3.5-27b"), tp=2)
        assert {name: (one.N, one.K, one.count) for name, one in found.items()} == {
            "self_attn.qkv_proj": (7168, 5120, 16),
            "self_attn.o_proj": (5120, 3072, 16),
            "linear_attn.in_proj_qkvz": (8192, 5120, 48),
            "linear_attn.in_proj_ba": (48, 5120, 48),
            "linear_attn.out_proj": (5120, 3072, 48),
            "mlp.gate_up_proj": (17408, 5120, 64),
            "mlp.down_proj": (5120, 8704, 64),
        }

    def test_an_indexer_is_whole_on_each_rank(self):
        found = of_rank(find_preset("deepseek-v3.2"), tp=8)
        assert shape(found["self_attn.indexer.wq_b"]) == (8192, 1536)
        assert shape(found["self_attn.indexer.wk"]) == (128, 7168)
        # GLM-5 interleaves its rope: the engine merges wk with a layer that is not quantised.
        assert "self_attn.indexer.wk" not in of_rank(find_preset("glm-5-fp8"), tp=8)

    def test_two_kinds_of_attention_layers(self):
        found = linear_layers(read_model(DATA / "models" / "mimo-v2-flash"), Ranks(tp=4))
        kinds = [(one.N, one.count) for one in found if one.name == "self_attn.qkv_proj"]
        # 16 query heads of 192 columns, and 1 or 2 heads of 192 + 128; no block divides 3392.
        assert kinds == [(16 * 192 + 320, 9), (16 * 192 + 2 * 320, 39)]


class TestRanks:
    def test_data_parallel_attention_is_shared_by_fewer_ranks(self):
        found = of_rank(find_preset("deepseek-r1"), tp=16, dp=16)
        assert (found["self_attn.q_b_proj"].N, found["self_attn.o_proj"].K) == (24576, 16384)
        assert (found["mlp.gate_up_proj"].N, found["mlp.down_proj"].K) == (2304, 1152)
        half = of_rank(find_preset("deepseek-r1"), tp=16, dp=2)
        assert half["self_attn.q_b_proj"].N == 3072

    def test_dense_and_shared_experts_may_be_whole(self):
        found = of_rank(find_preset("deepseek-r1"), tp=16, dp=16, dense_tp=1, shared_tp=1)
        assert found["mlp.gate_up_proj"].N == 36864
        assert found["mlp.shared_experts.down_proj"].K == 2048

    def test_fused_shared_experts_are_no_gemm(self):
        names = of_rank(find_preset("deepseek-r1"), tp=8, fuse_shared=True)
        assert "mlp.gate_up_proj" in names
        assert not any("shared" in name for name in names)

    def test_an_old_engine_runs_two_layers_for_the_first(self):
        found = of_rank(find_preset("deepseek-r1"), tp=8, fuse_qkv_a=False)
        assert "self_attn.fused_qkv_a_proj_with_mqa" not in found
        assert shape(found["self_attn.q_a_proj"]) == (1536, 7168)
        assert found["self_attn.kv_a_proj_with_mqa"].N == 576

    def test_ranks_beyond_the_key_heads_hold_copies(self):
        model = find_preset("qwen3-30b-a3b-fp8")  # 32 query heads and 4 key heads of 128 columns
        assert [of_rank(model, tp=tp)["self_attn.qkv_proj"].N for tp in (2, 4, 8)] == [
            *(16 * 128 + 2 * 2 * 128, 8 * 128 + 2 * 128, 4 * 128 + 2 * 128)
        ]

    def test_a_scheme_replaces_the_checkpoint_s(self):
        found = linear_layers(find_preset("deepseek-r1"), Ranks(tp=32), scheme=INT8_CHANNELS)
        assert {(one.dtype, one.block) for one in found} == {(Dtype.INT8_W8A8, None)}
        assert [one.N for one in found if one.name == "mlp.shared_experts.gate_up_proj"] == [128]

    def test_ranks_together_have_the_whole_layer(self, subtests):
        for model in KNOWN:
            with subtests.test(model.name):
                for tp in (1, 2, 4, 8, 16):
                    assert_whole(model, tp)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "ranks", "words"),
        [
            (
                "deepseek-r1",
                Ranks(tp=32),
                "leaves 576 columns of mlp.gate_up_proj, which the quant",
            ),
            ("deepseek-r1", Ranks(tp=32), "the nearest that works is tp=16"),
            ("deepseek-r1", Ranks(tp=3), "does not divide .* the nearest that works is tp=2"),
            ("qwen3-32b-fp8", Ranks(tp=16), "leaves .* columns of mlp.gate_up_proj"),
            ("qwen3-30b-a3b-fp8", Ranks(tp=3), "tp=3 does not divide"),
            ("deepseek-r1", Ranks(tp=8, dp=3), "dp=3 does not divide tp=8; .* dp=2"),
        ],
    )
    def test_the_nearest_size_that_works_is_named(self, name, ranks, words):
        with pytest.raises(IndivisibleShape, match=words):
            linear_layers(find_preset(name), ranks)

    def test_the_named_size_works(self):
        for tp in (3, 7, 12, 24, 32, 48, 69):
            try:
                linear_layers(find_preset("deepseek-r1"), Ranks(tp=tp))
            except IndivisibleShape as error:
                near = int(str(error).rpartition("tp=")[2])
                assert linear_layers(find_preset("deepseek-r1"), Ranks(tp=near))
                assert near != tp

    @pytest.mark.parametrize(
        ("model", "ranks", "words"),
        [
            (find_preset("deepseek-r1"), Ranks(tp=0), "start at 1"),
            (
                find_preset("llama-3.3-70b-fp8-dynamic"),
                Ranks(tp=8, dp=2),
                "no data-parallel attention for LlamaForCausalLM",
            ),
            (replace(find_preset("dbrx"), linears=None), Ranks(), "block_gemm"),  # none is known
        ],
    )
    def test_what_has_no_layers_on_a_rank(self, model, ranks, words):
        with pytest.raises(BadProblem, match=words):
            linear_layers(model, ranks)

    def test_merged_columns_are_checked_on_one_rank_too(self):
        with pytest.raises(IndivisibleShape, match="tp=1 leaves 10944 columns of mlp.gate_up_proj"):
            linear_layers(read(intermediate_size=10944), Ranks())

    def test_a_whole_row_layer_is_not_checked(self):
        layers = read(num_attention_heads=1, num_key_value_heads=1, head_dim=1152 + 128).linears
        narrow = [replace(one, K=one.K + 64) for one in layers.layers if one.split is Split.ROW]
        assert not any(refuses(one, Ranks(tp=1)) for one in narrow)
        assert all(refuses(one, Ranks(tp=2)) for one in narrow)


class TestConfigJson:
    def test_a_config_json_reads_as_its_preset(self, subtests):
        for folder in FOLDERS:
            with subtests.test(folder.name):
                linears = find_preset(folder.name).linears
                assert linears
                assert read_model(folder).linears == replace(linears, source="")

    def test_every_preset_is_sourced_and_counted(self, subtests):
        for model in KNOWN:
            with subtests.test(model.name):
                assert "config.json" in model.linears.source
                assert all(layer.count > 0 and layer.K > 0 for layer in model.linears.layers)
                # All layers have the experts' scheme, or are left unquantised.
                kinds = {layer.scheme.kind for layer in model.linears.layers}
                assert kinds <= {model.quantization, "none"}

    def test_quantisation(self, subtests):
        known = json.loads((DATA / "quantizations.json").read_text())
        for row in (one for one in known if "linears" in one):
            with subtests.test(str(row)):
                model = read(row["quantization_config"])
                found = {(one.dtype, one.block, one.why) for one in linear_layers(model, Ranks())}
                ((dtype, block, why),) = found
                assert [dtype and dtype.value, block and [*block], why] == row["linears"]
                assert model.linears.quantised is (dtype is not None)

    def test_experts_in_fp4_beside_layers_in_fp8(self):
        model = read(expert_dtype="fp4")
        assert all(not why_unread(one.scheme) for one in model.linears.layers)

    def test_float16_outputs(self):
        assert read(torch_dtype="float16").linears.out is Dtype.FLOAT16
        assert read(None, torch_dtype="float16").linears.layers[0].scheme.dtype is Dtype.FLOAT16

    def test_which_layers_have_experts(self):
        experts = {
            "num_experts": 8,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 2,
            "architectures": ["Glm4MoeForCausalLM"],
        }
        dense = of_rank(read(**experts, first_k_dense_replace=3))
        assert dense["mlp.gate_up_proj"].count == 3
        every_other = read(**experts, first_k_dense_replace=0, moe_layer_freq=2)
        assert of_rank(every_other)["mlp.down_proj"].count == 18
        shared = read(**experts, first_k_dense_replace=3, n_shared_experts=2)
        both = of_rank(shared)["mlp.shared_experts.gate_up_proj"]
        assert (both.N, both.count) == (2 * 2 * 768, 33)
        qwen = experts | {"architectures": ["Qwen3MoeForCausalLM"]}
        assert "mlp.gate_up_proj" not in of_rank(read(**qwen))

    @pytest.mark.parametrize(
        ("fields", "sparse"),
        [
            ({"expert_layer_period": 2, "expert_layer_offset": 1}, [1, 3, 5, 7]),  # Jamba
            ({"num_dense_layers": 2}, [2, 3, 4, 5, 6, 7]),  # LFM2
            (  # Ernie 4.5
                {"moe_layer_start_index": 1, "moe_layer_end_index": 6, "moe_layer_interval": 1},
                [1, 2, 3, 4, 5, 6],
            ),
            (
                {"moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 2},
                [1, 3, 5, 7],
            ),
            ({"moe_layers_enum": "4,5, 6"}, [4, 5, 6]),  # Step 3
            ({"moe_layers_enum": [4, 5, 6]}, [4, 5, 6]),
            ({}, [*range(8)]),
        ],
    )
    def test_fields_say_which_layers_have_experts(self, fields, sparse):
        experts = {"num_experts": 8, "num_hidden_layers": 8}
        assert sparse_places({**experts, **fields}, "AnyForCausalLM") == sparse

    def test_llama_4_interleaves_experts(self):
        sizes = {"intermediate_size": 8192, "intermediate_size_mlp": 16384}
        experts = {"num_local_experts": 16, "interleave_moe_layer_step": 2}
        llama = ["Llama4ForConditionalGeneration"]
        found = of_rank(read(architectures=llama, **experts, **sizes))
        dense = found["feed_forward.gate_up_proj"]
        assert (dense.N, dense.count) == (32768, 18)
        assert found["feed_forward.shared_expert.gate_up_proj"].N == 16384

    def test_a_class_that_is_not_known_is_refused(self):
        with pytest.raises(MalformedCheckpoint, match="DbrxForCausalLM are not known"):
            known_linears(read_model(DATA / "models" / "dbrx"))


class TestSkipped:
    def counts(self, names: list[str], listed: str = "modules_to_not_convert") -> dict[str, int]:
        model = read(BLOCKS | {listed: names})
        found = linear_layers(model, Ranks())
        return {one.name.rpartition(".")[2]: one.count for one in found if not one.why}

    @pytest.mark.parametrize("listed", ["modules_to_not_convert", "ignored_layers", "ignore"])
    def test_a_module_and_those_below_one(self, listed):
        names = ["lm_head", "model.layers.0.self_attn.o_proj", "model.layers.3.mlp", "model.norm"]
        others = dict.fromkeys(("o_proj", "gate_up_proj", "down_proj"), 35)
        assert self.counts(names, listed) == {"qkv_proj": 36, **others}

    def test_a_name_without_a_number_means_every_layer(self):
        assert self.counts(["self_attn", "mlp.gate"]) == {"gate_up_proj": 36, "down_proj": 36}

    def test_a_merged_layer_is_listed_by_its_parts(self):
        parts = [f"model.layers.7.self_attn.{name}_proj" for name in "qkv"]
        assert self.counts(parts)["qkv_proj"] == 35
        with pytest.raises(MalformedCheckpoint, match="some parts of layers.7.self_attn.qkv_proj"):
            self.counts(parts[:2])

    def test_regular_expressions(self):
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        group = {"weights": weights, "input_activations": {"num_bits": 8}, "targets": ["Linear"]}
        quant = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        ignore = ["lm_head", "re:.*self_attn.*", "re:.*layers\\.(0|1)\\.mlp\\.(gate|up)_proj$"]
        found = linear_layers(read(quant | {"ignore": ignore}), Ranks())
        left = {one.name: one.count for one in found if not one.why}
        assert left == {"mlp.gate_up_proj": 34, "mlp.down_proj": 36}

    def test_groups_of_several_types_are_not_taken_for_the_first(self):
        """As unsloth's Qwen3.6-27B-NVFP4: fp8 in attention, fp4 in the MLPs."""
        fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
        groups = {
            "group_0": {"weights": fp8, "input_activations": fp8, "targets": ["re:.*self_attn.*"]},
            "group_1": {"weights": fp8 | {"num_bits": 4}, "targets": ["re:.*mlp.*_proj"]},
        }
        quant = {"quant_method": "compressed-tensors", "config_groups": groups}
        found = linear_layers(read(quant), Ranks())
        assert all("float8 and compressed-tensors float4" in one.why for one in found)
        groups["group_1"]["targets"] = ["re:.*mlp.experts.*"]  # of no layer that is read here
        found = linear_layers(read(quant), Ranks())
        assert {one.name for one in found if not one.why} == {
            "self_attn.qkv_proj",
            "self_attn.o_proj",
        }

    def test_a_list_of_thousands_of_names(self):
        names = [f"model.layers.{at}.input_layernorm.{n}" for at in range(36) for n in range(500)]
        assert self.counts([*names, "model.layers.35.mlp.down_proj"])["down_proj"] == 35

    @pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*x", ".*.*.*.*.*.*", "(", "a" * 300])
    def test_a_pattern_that_takes_long_or_is_wrong_is_refused(self, pattern):
        quant = {"config_groups": {"g": {"weights": {"num_bits": 8}}}, "ignore": [f"re:{pattern}"]}
        with pytest.raises(MalformedCheckpoint, match="pattern"):
            read(quant)

    @pytest.mark.parametrize("names", ["lm_head", [1], {"a": 1}])
    def test_a_list_that_is_none(self, names):
        with pytest.raises(MalformedCheckpoint, match="modules to skip"):
            read(BLOCKS | {"modules_to_not_convert": names})


WORDS = [
    *("architectures", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "num_hidden_layers", "layer_types", "quantization_config"),
    *("kv_lora_rank", "q_lora_rank", "num_experts", "moe_layer_freq", "first_k_dense_replace"),
    *("index_n_heads", "linear_num_key_heads", "full_attention_interval", "text_config"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 26) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from(WORDS), values, max_size=4))
@example({"architectures": ["\n"]})
def test_any_config_json_gives_layers_or_a_clear_error(changes):
    fields = json.loads(config()) | changes
    try:
        model = parse_model(json.dumps(fields).encode(), "x")
        linear_layers(model, Ranks(tp=2))
    except TunerError as error:
        assert "\n" not in str(error)
