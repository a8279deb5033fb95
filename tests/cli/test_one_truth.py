"""One checkpoint, one answer: what runs, which flags are needed, and what is gained over what."""

import json

import pytest
from commands import run

MODEL = {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "intermediate_size": 1024,
    "hidden_size": 1024,
    "num_experts_per_tok": 2,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
            }
        },
    },
}
FLAG = "--quantization w8a8_int8"
RUNS = (
    f"sglang 0.5.16 on NVIDIA_L40S runs Triton here with {FLAG}; only on NPUs it has a kernel for "
    "int8 experts of compressed-tensors, so without that flag a server stops as it loads; with it, "
    "it reads tuned files"
)
OVER = f"over the server's own choice with {FLAG}: Triton's default configurations"
SERVED = ("--engine", "sglang==0.5.16", "--device", "L40S")
CLUSTER = """
name = "one-node"
[engine]
name = "sglang"
image = "lmsysorg/sglang:v0.5.16"
flags = [{flags}]
[model]
name = "mine"
path = "/models/mine"
config = "config.json"
context_length = 4096
[parallel]
tp = 4
ep = 1
dp = 1
[[nodes]]
name = "node-1"
host = "192.168.20.11"
interface = "eno1"
gpus = 4
"""
WATCH = """
[[watch]]
models = ["{problem}"]
devices = ["L40S"]
batch_sizes = [2]
engine = "sglang==0.5.16"
measure = "predict"
effort = "quick"
architecture = "{architecture}"
checkpoint = "{checkpoint}"
server_args = "{server_args}"
"""


@pytest.fixture
def tuner(env, tmp_path):
    """Run a command in a folder with the model's config.json; give its words in one line."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))

    def command(*words: object, code: int = 0) -> str:
        done = run(*words, env=env, cwd=tmp_path, code=code)
        return " ".join((done.stderr + done.stdout).split())

    return command


@pytest.mark.usefixtures("few_kernels")
def test_all_commands_say_the_same_of_a_checkpoint_that_needs_a_flag(tuner, subtests, tmp_path):
    model = ("./config.json", "--tp", 4)
    predicted = ("--measure", "predict", "--effort", "quick", "--batch-sizes", 1)
    planned = tuner("plan", *model, *SERVED)
    assert RUNS in planned and planned.count("Triton yes none unknown") == 1
    told = tuner("tune", *model, *SERVED, *predicted)
    assert RUNS in told and f"(predicted, {OVER})" in told
    gain = told.partition("x as fast at M=1")[0].rpartition(" ")[2]
    assert f"{gain}x predicted" in tuner("plan", *model, *SERVED)

    for given in ((), model, (*model, f"--server-args={FLAG}")):
        with subtests.test("export", given=given):
            said = tuner("export", *SERVED, "--allow-predicted", *given)
            assert f"{gain}x as fast (at M=1), {OVER}" in said
            needed = f"start servers with: {FLAG}" in said
            assert needed == (f"these files and these flags, {FLAG}: " in said)
            assert needed == (len(given) <= len(model))  # the last servers have the flag
    for given in ((), model):
        with subtests.test("report", given=given):
            said = tuner("report", *SERVED, *given)
            assert f"{gain}x as fast at M=1 (predicted, {OVER})" in said

    posted = tuner("jobs", "submit", *model, *SERVED, *predicted, "--json").partition("{")[2]
    assert '"checkpoint": "int8_w8a8 compressed-tensors int8"' in posted

    untuned = (*predicted[:-1], 2)
    post = ("jobs", "submit", *model, *SERVED, *untuned, f"--server-args={FLAG}", "--json")
    job = json.loads("{" + tuner(*post).partition("{")[2])
    (tmp_path / "nightly.toml").write_text(WATCH.format(**job["request"]))
    night = tuner("nightly", "run", "--watch-list", "nightly.toml", "--json")
    assert json.loads("{" + night.partition("{")[2])["waiting"] == [job["id"]]

    cluster = tmp_path / "cluster.toml"
    bundle = ("bundle", *SERVED, "--cluster", cluster, "--allow-predicted")
    cluster.write_text(CLUSTER.format(flags=""))
    advice = f"with {FLAG} in engine.flags the servers would read tuned files: {gain}x"
    assert advice in tuner(*bundle)
    cluster.write_text(CLUSTER.format(flags='"--quantization", "w8a8_int8"'))
    assert "| the same" in tuner(*bundle)
