"""The table of models says each value once, and in fields that are read."""

import pytest

from tuner.files import shipped_toml
from tuner.models.table import OWN, read_rows

ROWS = shipped_toml("tuner.models", "models.toml")["model"]
PARENT = {
    "name": "parent",
    "aliases": ["mother"],
    "architecture": "MixtralForCausalLM",
    **{"E": 8, "intermediate": 64, "hidden": 32, "top_k": 2, "shared_intermediate": 64},
    **{"quantization": "fp8", "dtype": "fp8_w8a8", "block_shape": [128, 128]},
    "source": "a book",
}


def test_a_row_is_like_an_earlier_one_and_repeats_nothing_of_it(subtests):
    whole = {}
    for row in ROWS:
        with subtests.test(row["name"]):
            parent = whole[row["like"]] if "like" in row else {}
            same = [k for k, v in row.items() if k not in OWN and parent.get(k) == v]
            assert same == []
        inherited = {k: v for k, v in parent.items() if k not in OWN}
        whole[row["name"]] = {**inherited, **{k: v for k, v in row.items() if k != "like"}}
    assert sum("like" in row for row in ROWS) > 50


def test_a_row_is_read_with_the_fields_of_the_row_that_it_is_like():
    child = {"name": "child", "like": "parent", "hidden": 48}
    grown = {"name": "grown", "like": "child", "E": 16, "source": "a letter"}
    parent, other, third = read_rows([PARENT, child, grown])
    assert (parent.aliases, parent.source, parent.n_shared_experts) == (("mother",), "a book", 1)
    assert (other.hidden, other.E, other.dtype, other.block_shape) == (
        48,
        8,
        parent.dtype,
        (128, 128),
    )
    assert other.aliases == () and "config.json" in other.source
    assert (third.hidden, third.E, third.source) == (48, 16, "a letter")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"like": "nobody"}, "like 'nobody'"),
        ({"like": "child"}, "like 'child'"),
        ({"like": "parent", "hiden": 1}, "unknown in a row: hiden"),
        ({"like": "parent", "doubt": "none"}, "unknown in a row: doubt"),
        ({"like": "parent", "attention": {"q_head": 1}}, "unknown in attention: q_head"),
        ({"like": "parent", "linears": {"lora": 1}}, "unknown in linears: lora"),
    ],
)
def test_a_wrong_row_is_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        list(read_rows([PARENT, {"name": "child", **fields}]))


@pytest.mark.parametrize("part", ["mamba", "delta"])
def test_an_unknown_size_of_a_layer_is_refused(part):
    with pytest.raises(TypeError, match="depth"):
        list(read_rows([{**PARENT, part: {"layers": 1, "depth": 1}}]))
