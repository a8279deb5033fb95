"""The files that servers ask for, and the files of a bundle: equal, or the bundle is refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_cases import CASES, ENGINES, EXAMPLES, build, built, example, files_of, fill, winners
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.deploy.bundle.asked_files import asked_files, render_files
from tuner.deploy.cluster import Cluster, read_cluster
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadProblem, ExportRefused, IndivisibleShape, MalformedCheckpoint
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status
from tuner.store.results import ResultStore

L40S, H20, RAY = CASES
ROOT = Path(__file__).parents[2]


def with_flags(cluster: Cluster, *flags: str) -> Cluster:
    return replace(cluster, engine=replace(cluster.engine, flags=flags))


def with_image(cluster: Cluster, image: str) -> Cluster:
    return replace(cluster, engine=replace(cluster.engine, image=image))


def asked(case: str, cluster: Cluster) -> list[str]:
    found = asked_files(cluster, find_engine(ENGINES[case][0]), find_device(CASES[case][0]))
    return [file.name for file in found if isinstance(file.problem, FusedMoe)]


@pytest.mark.parametrize("case", CASES)
def test_the_examples_and_their_winners_fit(case: str) -> None:
    compared = built(case).compared
    assert [file.name for file in compared.asked] == list(compared.bundled) != []
    assert {state for _, state in compared.rows()} == {"the same"}
    assert built(case).manifest["keys"] == compared.as_json()
    shown = render_files(compared, find_device(CASES[case][0]))
    assert shown.count("|  the same") == len(compared.bundled)
    assert max(map(len, shown.splitlines())) <= 80
    readme = files_of(built(case))["README.md"].data.decode()
    for name in compared.bundled:
        assert f"| `{name}` | the same |" in readme


def test_the_demo_tunes_what_the_l40s_example_asks_for() -> None:
    (command,) = re.findall(r"tuner tune (deepseek-r1 .*)", (ROOT / "Makefile").read_text())
    words = command.split()
    result = CliRunner().invoke(app, ["tune", *words, "--help"])
    assert result.exit_code == 0
    assert words == [
        *("deepseek-r1", "--tp", "32", "--dtype", "int8_w8a8"),
        *("--no-fuse-shared", "--device", "L40S", "--measure", "predict"),
    ]
    problem = parse_problem(CASES[L40S][1])
    assert {file.problem for file in built(L40S).compared.asked} == {problem}


def test_winners_without_the_shared_expert_do_not_fit_a_server_that_fuses_it() -> None:
    flags = [f for f in example(L40S).engine.flags if f != "--disable-shared-experts-fusion"]
    fusing = with_flags(example(L40S), *flags)
    with pytest.raises(ExportRefused) as refused:
        build(L40S, fusing)
    said = str(refused.value)
    name = "E={},N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True"
    assert f"none of them are bundled: {name.format(257)}.json" in said
    assert "add --disable-shared-experts-fusion to engine.flags" in said
    assert "run `tuner tune fused_moe:E=257,N=64,K=7168,top_k=9" in said
    with pytest.raises(ExportRefused, match="none of them are bundled"):
        build(L40S, fusing, allow_missing=True)  # nothing of it would be in the bundle
    named = [parse_problem(CASES[L40S][1])]
    noted = build(L40S, fusing, allow_missing=True, wanted=named)
    assert any(f"they do not ask for {name.format(256)}.json" in note for note in noted.notes)
    assert any("none of them are bundled" in note for note in noted.notes)
    assert "|  missing" in render_files(noted.compared, find_device("L40S"))


@pytest.mark.parametrize("case", [L40S, RAY])
@pytest.mark.parametrize("status", [Status.OK, Status.PREDICTED])
def test_other_models_winners_are_bundled_only_if_they_are_named(case: str, status: Status) -> None:
    with ResultStore.open("sqlite://") as store:
        own = fill(store, case, dict.fromkeys(BATCH_SIZES, status))
    mine = own[0].problem
    assert isinstance(mine, FusedMoe)
    other, twin = replace(mine, N=3 * mine.N), replace(mine, K=6144)  # the twin's file is its own
    mixed = [replace(one, problem=each) for each in (other, twin, mine) for one in own]
    assert build(case, of=mixed).archive == build(case, of=own).archive

    both = build(case, of=mixed, wanted=[mine, other])
    assert set(build(case, of=own).compared.bundled) < set(both.compared.bundled)
    assert all(f"N={3 * mine.N}," in name for name in both.compared.unasked)
    for named in ((), (twin,)):
        with pytest.raises(ExportRefused, match=r"left out \(2 problems ask for E=256,N="):
            build(case, of=mixed, wanted=[mine, twin], named=named)
    with pytest.raises(ExportRefused, match="none of them are bundled: E=256,N="):
        build(case, of=[one for one in mixed if one.problem != mine])


def test_winners_with_the_shared_expert_do_not_fit_vllm() -> None:
    fused = parse_problem(CASES[H20][1])
    tuned = [replace(winner, problem=fused) for winner in winners(RAY)]
    with pytest.raises(ExportRefused) as refused:
        build(RAY, example(RAY), of=tuned)
    said = str(refused.value)
    assert "vllm here does not fuse the shared experts (--no-fuse-shared)" in said
    assert "run `tuner tune fused_moe:E=256,N=128,K=7168,top_k=8" in said
    assert said.count("--engine vllm==0.33.0`") == 1


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("vllm/vllm-openai:v0.8.2", "vllm 0.8.2 reads no VLLM_TUNED_CONFIG_FOLDER"),
        ("vllm/vllm-openai:v0.10.0", "has since 0.10.1"),
    ],
)
def test_an_image_that_reads_no_folder_is_refused(image: str, why: str) -> None:
    with pytest.raises(ExportRefused, match=why):
        build(RAY, with_image(example(RAY), image))


@pytest.mark.parametrize("image", ["vllm/vllm-openai:v0.10.1", "vllm/vllm-openai:latest"])
def test_an_image_that_may_read_it_is_not(image: str) -> None:
    assert build(RAY, with_image(example(RAY), image)).compared.bundled


def test_the_release_decides_what_is_fused() -> None:
    unfused = "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    assert unfused not in asked(H20, example(H20))
    assert unfused in asked(H20, with_image(example(H20), "lmsysorg/sglang:v0.4.5"))


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--quantization", "fp8"), {"E=257,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8"}),
        (("--quantization=w8a8_int8",), {"dtype=int8_w8a8,per_channel_quant=True"}),
        (("--enforce-shared-experts-fusion",), {"E=257,"}),
        (("--disable-shared-experts-fusion",), {"E=256,"}),
    ],
)
def test_flags_change_what_is_asked(flags: Sequence[str], names: set[str]) -> None:
    found = asked(H20, with_flags(example(H20), *flags))
    assert len(found) == 2
    assert all(any(part in name for part in names) for name in found), found


def test_experts_may_be_spread() -> None:
    cluster = replace(example(H20), parallel=replace(example(H20).parallel, ep=16))
    assert asked(H20, cluster)[0].startswith("E=16,N=2048,")


def test_a_layer_that_does_not_divide_is_refused_with_the_nearest() -> None:
    fp8 = replace(example(L40S), model=replace(example(L40S).model, path="/models/DeepSeek-R1"))
    with pytest.raises(IndivisibleShape, match="nearest that works with sglang 0.5.16 is tp=16"):
        build(L40S, with_flags(fp8, "--attention-backend", "triton"))


def test_a_flag_without_its_number_is_named() -> None:
    with pytest.raises(BadProblem, match="--page-size needs a whole number, not 'big'"):
        build(H20, with_flags(example(H20), "--page-size", "big"))


def test_an_unknown_flag_is_noticed() -> None:
    found = build(H20, with_flags(example(H20), "--trust-remote-cod"))
    assert not [note for note in found.notes if "does not know" in note]  # argparse completes it
    found = build(H20, with_flags(example(H20), "--trust-remote-kode", "--mem-fraction-static=0.9"))
    (note,) = [note for note in found.notes if "does not know" in note]
    assert note.endswith("--trust-remote-kode; did you mean '--trust-remote-code'?")


def test_a_model_that_is_no_preset_is_known_by_its_config(tmp_path: Path) -> None:
    text = (EXAMPLES / f"{H20}.toml").read_text()
    text = text.replace('name = "deepseek-r1"', 'name = "mine"\nconfig = "mine/config.json"')
    (tmp_path / "cluster.toml").write_text(text.replace("DeepSeek-R1", "mine"))
    with pytest.raises(MalformedCheckpoint, match=r"config\.json"):
        asked(H20, read_cluster(tmp_path / "cluster.toml"))
    (tmp_path / "mine").mkdir()
    fields = {
        "architectures": ["Qwen3MoeForCausalLM"],
        **{"num_experts": 128, "moe_intermediate_size": 768, "hidden_size": 2048},
        **{"num_experts_per_tok": 8, "torch_dtype": "bfloat16"},
    }
    (tmp_path / "mine" / "config.json").write_text(json.dumps(fields))
    found = asked(H20, read_cluster(tmp_path / "cluster.toml"))
    assert found[0] == "E=128,N=48,device_name=NVIDIA_H20.json"
    unknown = replace(example(H20), model=replace(example(H20).model, name="x", path="/models/x"))
    with pytest.raises(ExportRefused, match=r"set model\.config to the path .*, or bundle") as no:
        build(H20, unknown)
    assert no.value.in_api_words().endswith(
        "give model.name a preset's name, or run `tuner bundle`"
    )
    words = shlex.split(str(no.value).rpartition("the stored problems: add ")[2])
    assert words == ["--problem", CASES[H20][1]]
    noted = build(H20, unknown, wanted=[parse_problem(words[1])])
    assert any("set model.config" in note for note in noted.notes)
    others = [replace(parse_problem(words[1]), N=n) for n in (256, 384, 512, 640, 768)]
    many = [replace(winners(H20)[0], problem=problem) for problem in others]
    with pytest.raises(
        ExportRefused, match=r"of 5: `tuner nightly coverage --device NVIDIA_H20` lists"
    ):
        build(H20, unknown, of=many)


def test_servers_of_another_version_are_noted() -> None:
    said = "chosen for vllm 0.33.0, and the servers run 0.11.0"
    assert any(said in note for note in built(RAY).notes)
    assert not any("and the servers run" in note for note in built(H20).notes)


def test_winners_of_another_version_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    with ResultStore.open(url) as store:
        fill(store, L40S)
    text = (EXAMPLES / f"{L40S}.toml").read_text().replace("sglang:v0.5.16", "sglang:v0.4.4")
    (tmp_path / "cluster.toml").write_text(text)
    options = ["--device", "L40S", "--cluster", str(tmp_path / "cluster.toml"), "--allow-predicted"]
    result = CliRunner().invoke(app, ["bundle", *options])
    assert result.exit_code == 1
    assert "no winners for NVIDIA_L40S with sglang==0.4.4, only with 0.5.16" in result.stderr
    assert f"run `tuner tune --cluster {tmp_path}" in result.stderr
