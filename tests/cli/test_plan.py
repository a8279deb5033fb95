"""`tuner plan`, and the plan that `tune --all` shows: who runs each problem, and what is known."""

import json

import pytest
from cases import FP8_RECORDING, ROOT
from commands import run
from typer.testing import CliRunner
from unchanged_cases import ENGINE

from tuner.cli.commands import app

R1 = ("deepseek-r1", "--tp", "8")
RECORDED = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"


def planned(env, *words, device="H200"):
    done = run("plan", *words, "--device", device, "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def by_kind(plan):
    """What is said of each kind of problem."""
    return {
        one["problem"].partition(":")[0]: (
            [kernel["kernel"] for kernel in one["runs"]["kernels"]],
            one["reads_files"],
            one["tune"],
        )
        for one in plan["problems"]
    }


def test_a_plan_says_who_runs_each_problem_of_a_model_on_hopper(env):
    plan = planned(env, *R1)
    assert by_kind(plan) == {
        "fused_moe": (["Triton"], "yes", True),
        "extend_attention": (["FlashAttention 3"], "with flags", False),
        "decode_attention": (["FlashAttention 3"], "with flags", False),
        "block_gemm": (["DeepGEMM", "Triton"], "maybe", True),
    }
    assert plan["summary"].startswith("7 of 10 problems to tune, about ")
    assert {one["file"] for one in plan["problems"] if one["problem"].startswith("fused")} == {
        "shipped"
    }
    assert {one["gain"] for one in plan["problems"]} == {None}


def test_a_shipped_file_for_another_triton_and_the_next_command_are_told(env):
    words = ("--tp", "16", "--device", "H200", "--engine", "sglang==0.5.16")
    done = run("plan", "kimi-k2", *words, env=env)
    said = " ".join(done.stdout.split())
    assert "was tuned with Triton 3.3.1, and this release runs another Triton" in said
    served = "--device H200 --tp 16 --engine sglang==0.5.16"
    assert f"tuner tune kimi-k2 {served} --all" in done.stderr
    plan = planned(env, "deepseek-r1", "--tp", "8", "--engine", "sglang==0.5.16")
    assert {(one["file"], one["file_triton"]) for one in plan["problems"]} == {
        ("shipped", "3.5.1"),
        ("shipped", None),
        ("none", None),
    }


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ("glm-4.6 --tp 8 --device L40S", "73 GiB of each rank, and NVIDIA_L40S has 48 GiB"),
        ("glm-4.6 --tp 8 --device H200", ""),
        ("deepseek-r1 --tp 8 --device H200", ""),
        ("tests/data/models/deepseek-r1 --tp 8 --device L40S", "each rank, and NVIDIA_L40S has"),
        ("llama-4-maverick-fp8 --tp 8 --device H100", ""),  # every second layer has experts
        ("nemotron-3-nano-30b-a3b --tp 1 --device H100", ""),
    ],
)
def test_weights_that_cannot_fit_are_told(env, words, least):
    said = run("plan", *words.split(), env=env, cwd=ROOT).stderr
    assert ("does not fit" in said) == bool(least)
    # What does not fit is not to be tuned: the next step is to divide the model further.
    assert ("next: plan with the larger --tp" in said) == bool(least) != ("tuner tune" in said)
    assert least in said


def test_a_server_s_flags_change_the_plan(env):
    plan = planned(
        env, *R1, "--server-args", "--decode-attention-backend triton --fp8-gemm-backend=triton"
    )
    kinds = by_kind(plan)
    assert kinds["decode_attention"] == (["Triton"], "yes", True)
    assert kinds["extend_attention"][1:] == ("with flags", False)
    assert kinds["block_gemm"] == (["Triton"], "yes", True)


@pytest.mark.parametrize("words", [(), ("--server-args", "--moe-backend triton")])
def test_experts_that_tune_refuses_are_not_to_be_tuned(env, words):
    """vLLM runs int4 experts with Humming or Marlin; no file for its Triton kernel is made here."""
    plan = planned(env, "kimi-k2.5", "--tp", "8", "--engine", "vllm==0.33.0", *words)
    kernels, reads, tune = by_kind(plan)["fused_moe"]
    assert kernels == (["Triton's kernel for int4"] if words else ["Humming", "Marlin"])
    assert (reads, tune) == ("no", False)


@pytest.mark.parametrize("words", [("--ep", "8"), ("--server-args", "--enable-expert-parallel")])
def test_experts_that_are_divided_may_have_other_kernels(env, words):
    """vLLM 0.33.0 on Hopper moves Triton to the front only if a rank has a part of each expert."""
    plan = planned(env, *R1, "--engine", "vllm==0.33.0", *words, device="H200")
    assert by_kind(plan)["fused_moe"][0] == ["FlashInfer (CUTLASS)", "DeepGEMM", "Triton"]


@pytest.mark.parametrize(
    ("engine", "words", "same"),
    [
        ("vllm", "--enable-expert-parallel", ("--tp", "4", "--ep", "4")),
        ("vllm", "-tp 2 -ep", ("--tp", "2", "--ep", "2")),
        ("vllm", "--tensor-parallel-size=2", ("--tp", "2")),
        ("sglang", "--tp-size 4 --ep-size 2", ("--tp", "4", "--ep", "2")),
        ("sglang", "--tp 4 --enable-ep-moe", ("--tp", "4", "--ep", "4")),
        ("sglang", "--disable-shared-experts-fusion", ("--tp", "4", "--no-fuse-shared")),
        ("sglang", "--tp 4 --dp 2 --enable-dp-attention", ("--tp", "4", "--dp", "2")),
    ],
)
def test_flags_that_divide_a_model_are_those_options(env, engine, words, same):
    """What each rank runs follows from the server's flags, as from our own options."""
    served = ("--device", "H100", "--engine", engine, "--json")
    tp = () if "tp" in words or "tensor" in words else ("--tp", "4")
    by_flags = json.loads(
        run("plan", "deepseek-r1", *served, *tp, "--server-args", words, env=env).stdout
    )
    by_options = json.loads(run("plan", "deepseek-r1", *served, *same, env=env).stdout)
    problems = [[one["problem"] for one in plan["problems"]] for plan in (by_flags, by_options)]
    assert problems[0] == problems[1]


def test_experts_that_get_their_tokens_sent_leave_shared_experts_whole(env):
    """With DeepEP, sglang gives the shared experts' linear layers a tensor-parallel size of 1."""
    served = ("--device", "H100", "--engine", "sglang", "--json", "--tp", "4")
    words = ("--server-args", "--moe-a2a-backend deepep"), ("--ep", "4")
    sent, divided = (
        json.loads(run("plan", "deepseek-r1", *served, *some, env=env).stdout) for some in words
    )
    first, second = ({one["problem"] for one in plan["problems"]} for plan in (sent, divided))
    shape = "block_gemm:N={},K={},dtype=fp8_w8a8,block=128x128"
    assert first - second == {shape.format(4096, 7168), shape.format(7168, 2048)}
    assert second - first == {shape.format(1024, 7168), shape.format(7168, 512)}


def test_an_option_of_a_family_that_was_left_out_names_the_reason(env, subtests):
    """The length of groups is missing. A dense model has no experts at all."""
    int4 = ("qwen3.5-35b-a3b", "--dtype", "int4_w4a16", "--engine", "vllm==0.33.0")
    for words, said in (
        (int4, "--ep has no effect: a fused-MoE layer is left out: int4_w4a16 weights have groups"),
        (("qwen3-32b",), "--ep is for a fused-MoE layer and quantised dense GEMMs: leave it out"),
    ):
        with subtests.test(words):
            served = ("--tp", "2", "--ep", "2", "--device", "RTX 3090")
            done = run("plan", *words, *served, env=env)
            assert done.returncode == 2 and said in done.stderr
            assert ("--block-shape 0x128" in done.stderr) == (words == int4)


def test_ep_is_no_flag_of_the_server(env):
    """An option that does not fit gets its own message, and not that flags contradict it."""
    served = ("--engine", "vllm", "--device", "H100", "--ep", "4")
    assert run("plan", "deepseek-r1", "--tp", "8", *served, env=env).returncode == 0
    refused = run("plan", "deepseek-r1", *served, env=env)
    assert (refused.returncode, "server's flags" in refused.stderr) == (2, False)
    assert "ep=4 does not divide tp=1" in refused.stderr


def test_stored_times_are_the_known_gain(env):
    measure = f"replay:{FP8_RECORDING}"
    replay = ("--measure", measure, "--batch-sizes", "16", "--effort", "quick")
    assert run("tune", RECORDED, "--device", "H200", *replay, env=env).returncode == 0
    [one] = planned(env, RECORDED)["problems"]
    assert (one["file"], one["gain_from"]) == ("stored", "ok")
    assert one["gain"] >= 1.0
    said = run("plan", RECORDED, "--device", "H200", env=env).stdout
    assert "x measured" in " ".join(said.split())


@pytest.mark.parametrize("words", [(*R1, "--device=H200"), ("qwen3-30b-a3b", "--device=L40S")])
def test_the_head_of_a_plan_is_one_line_of_80_columns(env, words):
    lines = run("plan", *words, env={**env, "COLUMNS": "80"}, code=0).stdout.splitlines()
    head, rule = lines[2:4]
    assert head.split() == ["problem", "runs", "reads", "file", "gain", "GPU"]
    assert set(rule) == {"-", " "} and len(rule) <= 80
    assert any(line.endswith("27 s") for line in lines[4:])


def test_where_no_server_reads_a_file_nothing_is_tuned(env):
    """A dense model in 16 bits has attention alone, and FlashAttention 3 runs that on Hopper."""
    words = ("qwen3-32b", "--tp", "4", "--device", "H100")
    plan = run("plan", *words, env=env)
    first = plan.stdout.splitlines()[0]
    assert first == "leave everything as it is: servers here would read no tuned file"
    tuned = run("tune", *words, "--all", "--measure", "predict", "--json", env=env)
    assert (tuned.returncode, json.loads(tuned.stdout)) == (0, {"reports": []})
    assert first in tuned.stderr.splitlines()
    tuned = run("tune", *words, "--all", "--measure", "predict", env=env, code=0)
    assert tuned.stdout == "" and "next:" not in tuned.stderr


def test_a_broken_config_is_no_reason_to_leave_everything_as_it_is(env, tmp_path):
    """FlashAttention 3 runs its attention on Hopper, and how many experts it has is not said."""
    config = json.loads((ROOT / "tests/data/dense_models/qwen3-8b/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 8}))
    plan = run("plan", tmp_path, "--device", "H100", env=env)
    assert plan.stdout.startswith("not known: too little could be read of a fused-MoE layer;")
    assert "how many experts" in plan.stderr and "not a mixture" not in plan.stderr


def test_a_dense_model_is_not_said_to_lack_experts(env):
    plan = run("plan", ROOT / "tests/data/dense_models/qwen3-8b", "--device", "H100", env=env)
    assert plan.stdout.startswith("leave everything as it is")
    assert "experts" not in plan.stderr


def test_a_cluster_file_names_engine_model_ranks_and_flags(env):
    example = ROOT / "examples" / "cluster-h20-2x8-sglang.toml"
    plan = planned(env, "--cluster", example, device="H20")
    assert plan["device"] == "NVIDIA_H20"
    assert "fused_moe:E=257,N=128,K=7168" in plan["problems"][0]["problem"]  # 16 ranks


@pytest.mark.slow  # of its parts, the plan and the refusals have cases of their own
def test_a_cluster_file_is_tuned_for_and_exported_as_its_servers_ask(env):
    """What the plan tunes is tuned and exported, and no option may contradict the file."""
    example = ROOT / "examples" / "cluster-h20-2x8-sglang.toml"
    words = ("--cluster", example, "--device", "H20")
    more = ("--measure", "predict", "--batch-sizes", "16", "--effort", "quick")
    for name in ("tune", "export"):
        given = ("--engine", "vllm") if name == "export" else ("deepseek-r1",)
        done = run(name, *given, *words, env=env)
        assert done.returncode == 2
        assert "the cluster file says it: leave" in done.stderr
    plan = planned(env, *words[:2], device="H20")
    asked = [one["problem"] for one in plan["problems"] if one["tune"]]
    tuned = run("tune", *words, *more, "--json", env=env)
    assert tuned.returncode == 0, tuned.stderr
    made = json.loads(tuned.stdout)
    assert [one["problem"] for one in made.get("reports", [made])] == asked
    exported = run("export", *words, "--allow-predicted", "--json", env=env)
    assert exported.returncode == 0, exported.stderr
    assert {one["problem"] for one in json.loads(exported.stdout)["advice"]} <= set(asked)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a model, or a cluster file: tuner plan --cluster cluster.toml"),
        (("deepseek-r1", "--cluster", "c.toml"), "leave 'deepseek-r1' out"),
        (
            ("deepseek-r1", "--server-args", "--x '"),
            "cannot read the server's flags \"--x '\": No closing quotation",
        ),
        (
            ("deepseek-r1", "--tp", "8", "--server-args", "--tp-size 4"),
            "--tp is 8, and the server's flags say 4: leave one of them out",
        ),
        (
            ("deepseek-r1", "--server-args", "--ep-size x"),
            "--ep-size needs a whole number, not 'x'",
        ),
        (
            ("deepseek-r1", "--engine", "vllm", "--server-args", "-tp 2 -dp 4 -ep"),
            "--tp is the number of all ranks (4 times tp)",
        ),
    ],
)
def test_bad_input_is_one_line(env, words, said):
    done = run("plan", *words, "--device", "H200", env=env)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert said in line


def test_a_prediction_ends_at_once_where_the_engine_ships_a_file(env):
    words = ("qwen3-235b-a22b", "--tp", "4", "--device", "H200", "--engine", ENGINE)
    done = run("tune", *words, "--measure", "predict", env=env)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert said.startswith(
        "sglang ships a file for NVIDIA_H200, and a prediction keeps its entries"
    )
    assert said.endswith("--effort exhaustive predicts their times all the same")
    assert " tried" not in done.stderr
    as_json = json.loads(run("tune", *words, "--measure", "predict", "--json", env=env).stdout)
    assert {entry["status"] for entry in as_json["entries"]} == {"incumbent"}
    (layer,) = (one for one in planned(env, *words[:3])["problems"] if "moe" in one["problem"])
    assert (layer["file"], layer["gain"]) == ("shipped", None)


def test_what_is_not_predicted_is_left_out_in_one_line_or_refused(monkeypatch):
    asked = []
    monkeypatch.setattr("tuner.cli.tuning.run_all", lambda requests, *_: asked.extend(requests))
    tuned = ["tune", "deepseek-r1", "--tp", "8", "--device", "L40S", "--engine", ENGINE]
    triton = ["--server-args", "--attention-backend triton", "--measure", "predict"]
    done = CliRunner().invoke(app, [*tuned, *triton, "--all"])
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stderr.splitlines() if "cannot be predicted" in line]
    assert line.startswith("left out attention: ")
    names = {request.problem.family for request in asked}
    assert "fused_moe" in names and not any("attention" in name for name in names)
    alone = CliRunner().invoke(app, [*tuned, *triton, "--family", "attention"])
    assert alone.exit_code == 2
    assert "measure them on a GPU, with the same command and --measure gpu" in alone.stderr


def test_a_release_without_the_model_s_class_gets_no_command(env, tmp_path):
    config = {"architectures": ["Dots1ForCausalLM"], "hidden_size": 4096, "n_routed_experts": 128}
    config |= {"moe_intermediate_size": 1408, "num_experts_per_tok": 6, "num_attention_heads": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = ["plan", str(tmp_path), "--tp", "4", "--device", "H20", "--engine"]
    without = run(*asked, "vllm==0.33.0", env=env)
    assert "next: plan with a release of vllm that has the model's class" in without.stderr
    assert "tuner tune" not in without.stderr
    assert "tuner tune" in run(*asked, "vllm==0.10.2", env=env).stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": "2048"},
        {"hidden_size": 2048.0},
        {"hidden_size": 10**30},
        {"num_experts": True},
        {"num_attention_heads": -1},
        {"quantization_config": {"quant_method": ["fp8"]}},
        {"quantization_config": {"quant_method": "fp8", "ignored_layers": 5}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        {"quantization_config": 5},
    ],
)
def test_of_a_broken_config_nothing_is_planned(env, tmp_path, fields):
    given = json.loads((ROOT / "tests/data/models/qwen3-30b-a3b-fp8/config.json").read_text())
    broken = tmp_path / "config.json"
    broken.write_text(json.dumps({**given, **fields}))
    done = run("plan", str(broken), "--device", "H200", env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert str(broken) in done.stderr and "left out" not in done.stderr
