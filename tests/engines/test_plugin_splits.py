"""KV splits of a file's table in the Triton attention backend of real sglang versions.

Each run has a separate process (`decode_scheduler.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schedulers import run_scheduler, write_files
from test_plugin_engines import DEVICE, VERSIONS, attention_file
from tiers import only

from tuner.bindings.sglang.plugin.splits import SplitsRow, SplitsTable

PROGRAM = "decode_scheduler.py"
PROBLEM = "decode_attention:q_heads=2,kv_heads=1,Lq=32,Lv=32,dtype=float16"
TABLE = SplitsTable(
    (
        SplitsRow(1, 16, ((64, 2), (256, 16))),
        SplitsRow(3, 8, ((64, 1), (256, 4))),
        SplitsRow(6, 0, ()),  # the engine's own rule
    )
)
STAGE_1 = {"BLOCK_N": 16, "BLOCK_H": 16, "num_warps": 2, "num_stages": 3}
ROWS = [
    (part, n, 1, c)
    for n in (1, 3, 6)
    for part, c in (("decode", STAGE_1), ("reduce", {"num_warps": 1}))
]
BATCHES = {
    "one": [300],
    "one short": [33],
    "three": [200, 210, 250],
    "three short": [60, 64, 70],
    "three ragged": [1, 320, 31],
    "five": [50, 100, 200, 32, 1],
}


# name -> what differs from a plain server, and the batches
FEW = {name: BATCHES[name] for name in ("one", "three ragged")}
RAGGED = {"three ragged": BATCHES["three ragged"]}
CAPPED = {name: BATCHES[name] for name in ("one", "three", "three ragged")}
SERVERS = {
    "graphs": {},
    "eager": {"graph": False},
    "draft": {"draft": True, "batches": RAGGED},
    "draft steps": {"built": {"skip_prefill": True}, "batches": RAGGED},
    "static": {"static": True, "batches": RAGGED},
    "tile size": {"tile": 256, "batches": RAGGED},
    "flag": {"kv_splits": 4, "batches": FEW},
    # No file is for layers with a cap, whether the model shows it or not. So large a cap changes
    # no result.
    "capped": {"cap": 1e4, "batches": CAPPED},
    "unseen cap": {"cap": 1e4, "shown_cap": 0.0, "batches": CAPPED},
    "unseen cap, eager": {"cap": 1e4, "shown_cap": 0.0, "graph": False, "batches": CAPPED},
}
DOUBTS = {
    "draft": "a draft model",
    "draft steps": "a draft model",
    "static": "SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS",
    "tile size": "--triton-attention-split-tile-size",
}


class Served:
    def __init__(self, folder: Path, log: str) -> None:
        self.by_server = json.loads((folder / "report.json").read_text())
        self.log = log
        self.lines = [line for line in log.splitlines() if "KV splits of " in line]


def serve(folder: Path, version: str, root: Path) -> Served:
    settings = {"device": DEVICE, "batches": BATCHES, "servers": SERVERS}
    environ = {"TUNER_ATTENTION_CONFIG_DIR": str(root)}
    return Served(folder, run_scheduler(PROGRAM, folder, version, environ, settings))


@pytest.fixture(scope="module", params=only(VERSIONS[-1:], VERSIONS))
def version(request):
    return request.param


@pytest.fixture(scope="module")
def without(version, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without")
    return serve(folder, version, folder / "empty")


@pytest.fixture(scope="module")
def tuned(version, tmp_path_factory):
    file = attention_file(version, PROBLEM, ROWS, splits=TABLE)
    root = write_files(tmp_path_factory.mktemp("root"), file)
    return serve(tmp_path_factory.mktemp("with"), version, root)


@pytest.mark.parametrize("server", ["graphs", "eager"])
def test_each_sequence_has_the_files_splits(server, without, tuned):
    batches = tuned.by_server[server]
    splits = {name: batch["splits"] for name, batch in batches.items()}
    assert splits["one"] == [16] and splits["one short"] == [2]
    assert splits["three"] == [4, 4, 4] and splits["three short"] == [1, 1, 1]
    # The long one makes up most of its batch, so it is split as if it were alone: as far as a
    # launch of three sequences has room.
    assert splits["three ragged"] == [1, 8, 1]
    assert splits["five"] == without.by_server[server]["five"]["splits"]


@pytest.mark.parametrize("server", list(SERVERS))
def test_every_output_is_right(server, without, tuned):
    for served in (without, tuned):
        for name, batch in served.by_server[server].items():
            assert batch["error"] < 3e-3, (name, batch)  # float16's step at 1 is 1e-3


@pytest.mark.parametrize("server", ["graphs", "eager"])
def test_launches_have_room_for_the_table_of_their_number_of_sequences(server, without, tuned):
    rooms = {1: 16, 3: 8, 5: 8}
    for name, batch in tuned.by_server[server].items():
        stage_1, reduce = batch["launches"]
        sequences = len(BATCHES[name])
        assert stage_1["grid"] == [sequences, 1, rooms[sequences]]
        assert reduce["MAX_KV_SPLITS"] == rooms[sequences] >= max(batch["splits"])
        assert stage_1.items() >= STAGE_1.items()
        assert reduce["num_warps"] == 1
        own = without.by_server[server][name]["launches"]
        assert own[0]["grid"][2] == own[1]["MAX_KV_SPLITS"] == 8


@pytest.mark.parametrize(("server", "why"), DOUBTS.items())
def test_in_doubt_the_engines_own_splits_and_launches_stay(server, why, without, tuned):
    own, ours = without.by_server[server], tuned.by_server[server]
    assert own.keys() == RAGGED.keys()
    assert ours == own
    said = [
        line for line in tuned.lines if f"sglang's own KV splits stay, because of {why}" in line
    ]
    assert len(said) == 1


def test_layers_of_another_shape_have_the_engines_splits_and_launches(without, tuned):
    assert tuned.by_server["capped"] == without.by_server["capped"]
    assert sum("a layer is of another shape" in line for line in tuned.log.splitlines()) == 2


@pytest.mark.parametrize("server", ["unseen cap", "unseen cap, eager"])
def test_a_layer_that_the_model_did_not_show_ends_the_files_splits(server, without, tuned):
    """What was written before its launch has room, and no launch has constants of a table."""
    own, ours = (served.by_server[server] for served in (without, tuned))
    first, *later = CAPPED
    for name in later:
        room = ours[name]["launches"][0]["grid"][2]
        assert ours[name]["splits"] == [min(n, room) for n in own[name]["splits"]]
    for name in CAPPED:
        stage_1, reduce = ours[name]["launches"]
        assert reduce["MAX_KV_SPLITS"] == stage_1["grid"][2] >= max(ours[name]["splits"])
        assert [{**launch, "grid": 0, "MAX_KV_SPLITS": 0} for launch in ours[name]["launches"]] == [
            {**launch, "grid": 0, "MAX_KV_SPLITS": 0} for launch in own[name]["launches"]
        ]
    if "eager" in server:  # 0.5.12 writes nothing before it captures a graph
        assert ours[first]["launches"][0]["grid"][2] == 16
    assert ours["three"] == {**own["three"], "error": ours["three"]["error"]}


def test_a_flag_is_the_upper_bound(tuned):
    batches = tuned.by_server["flag"]
    assert batches["one"]["splits"] == [4]
    assert batches["three ragged"]["splits"] == [1, 4, 1]
    assert {batch["launches"][0]["grid"][2] for batch in batches.values()} == {4}


def test_what_is_used_is_logged_once(without, tuned):
    used = [line for line in tuned.lines if "because of" not in line]  # once for all servers
    assert [line.partition("float16: ")[2].partition(";")[0] for line in used] == [
        "up to 16 KV splits, sglang's own 8",
        "up to 4 KV splits, sglang's own 4",
    ]
    assert "64 MiB at most" in used[0]
    assert not without.lines
