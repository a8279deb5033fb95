"""Launch scripts: clean, quoted, and what they print is what the users ran."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_cases import CASES, built, example, files_of, place, printed
from draws import times
from hypothesis import given
from hypothesis import strategies as st
from real_sglang import RELEASES, package

from tuner.deploy.bundle.commands import endpoint, node_commands, node_environments, one_line
from tuner.deploy.bundle.scripts import bare_script, docker_script
from tuner.deploy.cluster import Cluster
from tuner.errors import MalformedCluster

L40S, H20, RAY = CASES
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
HCAS = ",".join(f"mlx5_{i}" for i in range(1, 9))


def options(words: list[str]) -> dict[str, str]:
    """Flags with their values, those of an engine's command line."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else after
    return found


def after(words: list[str], mark: str) -> list[str]:
    return words[words.index(mark) + 1 :]


def variables(words: list[str]) -> dict[str, str]:
    pairs = [w for flag, w in zip(words, words[1:], strict=False) if flag == "--env"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("case", CASES)
def test_shellcheck_finds_nothing(case: str, tmp_path: Path) -> None:
    scripts = sorted(place(built(case), tmp_path).rglob("*.sh"))
    assert len(scripts) == 3 * len(example(case).nodes)
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    for script in scripts:
        assert "set -euo pipefail" in script.read_text()


# What the users ran. H20: sglang's issue 4978. L40S: sglang's own guide for 32 L40S.
# What differs is listed here.


@pytest.mark.parametrize("rank", [0, 1])
def test_h20_command_means_what_the_user_ran(rank: int, tmp_path: Path) -> None:
    script = place(built(H20), tmp_path) / f"nodes/h20-node0{rank + 1}/docker.sh"
    (words,) = printed(script)
    theirs = {
        "--model-path": "/mnt/models/DeepSeek-R1",
        "--dist-init-addr": "10.63.65.207:30000",
        "--nnodes": "2",
        "--node-rank": str(rank),
        "--tp-size": "16",  # --tp
        "--trust-remote-code": "",
        "--mem-fraction-static": "0.90",
        "--tokenizer-mode": "auto",
        "--chunked-prefill-size": "4096",
        "--context-length": "65536",
        "--quantization": "fp8",
        "--reasoning-parser": "deepseek-r1",
        "--host": "0.0.0.0",  # noqa: S104
        "--port": "8000",
    }
    ours = options(after(words, "sglang.launch_server"))
    assert dict(theirs.items() - ours.items()) == {
        "--tokenizer-mode": "auto",  # sglang's default
        "--quantization": "fp8",  # the checkpoint says so itself
    }
    assert dict(ours.items() - theirs.items()) == {"--served-model-name": "deepseek-r1"}


def test_h20_container_means_what_the_user_ran(tmp_path: Path) -> None:
    root = place(built(H20), tmp_path)
    (words,) = printed(root / "nodes/h20-node01/docker.sh")
    assert words[:2] == ["docker", "run"]
    for pair in ("--gpus all", "--network host", "--ipc host", "--ulimit memlock=-1"):
        assert pair in " ".join(words)
    assert "--ulimit stack=67108864" in " ".join(words)
    # Instead of --privileged.
    assert "--device /dev/infiniband --volume" in " ".join(words)
    assert "--cap-add IPC_LOCK" in " ".join(words)
    assert f"{root}/engine-configs:/opt/tuner/engine-configs:ro" in words
    assert variables(words) == {
        "SGLANG_MOE_CONFIG_DIR": "/opt/tuner/engine-configs",
        "SGLANG_HOST_IP": "10.63.65.207",
        "HOST_IP": "10.63.65.207",
        "GLOO_SOCKET_IFNAME": "xgbe0",
        "NCCL_SOCKET_IFNAME": "xgbe0",
        "TP_SOCKET_IFNAME": "xgbe0",
        "NCCL_IB_HCA": f"={HCAS}",
        "NCCL_DEBUG": "INFO",
    }
    # The user's `-v /ssd1/models:/mnt/models`.
    assert "/ssd1/models/DeepSeek-R1:/mnt/models/DeepSeek-R1:ro" in words


def test_l40s_commands_mean_what_the_user_ran(tmp_path: Path) -> None:
    root = place(built(L40S), tmp_path)
    for rank in range(4):
        *exports, words = printed(root / f"nodes/l40s-0{rank + 1}/bare.sh")
        theirs = {
            "--model-path": "/models/DeepSeek-R1-Channel-INT8",  # --model, a hub's name there
            "--tp-size": "32",  # --tp
            "--quantization": "w8a8_int8",
            "--dist-init-addr": "192.168.20.11:5000",
            "--nnodes": "4",
            "--node-rank": str(rank),
            "--trust-remote-code": "",  # --trust-remote, which argparse completes
            "--enable-torch-compile": "",
            "--torch-compile-max-bs": "32",
        }
        assert words[:3] == ["python3", "-m", "sglang.launch_server"]
        ours = options(words[3:])
        assert dict(theirs.items() - ours.items()) == {
            "--enable-torch-compile": "",  # engine.flags says what else is wanted
            "--torch-compile-max-bs": "32",
        }
        assert ours.keys() - theirs.keys() == {
            "--served-model-name",
            "--context-length",
            "--disable-shared-experts-fusion",  # their engine, 0.4.4, did not fuse them
            "--attention-backend",
            "--mem-fraction-static",
            "--host",
            "--port",
        }
        assert all(line[0] == "export" for line in exports)
        assert ["export", f"SGLANG_HOST_IP=192.168.20.1{rank + 1}"] in exports
        assert ["export", f"SGLANG_MOE_CONFIG_DIR={root}/engine-configs"] in exports


def test_vllm_starts_ray_and_then_the_server(tmp_path: Path) -> None:
    root = place(built(RAY), tmp_path)
    *_, ray, serve = printed(root / "nodes/h20-node01/bare.sh")
    assert shlex.join(ray[:3]) == "ray start --head"
    assert options(ray)["--node-ip-address"] == "10.63.65.207"
    assert serve[:3] == ["vllm", "serve", "/ssd1/models/DeepSeek-R1"]
    assert (options(ray)["--port"], options(ray)["--dashboard-host"]) == ("8379", "0.0.0.0")  # noqa: S104
    assert options(serve) == {
        "--served-model-name": "deepseek-r1",
        "--max-model-len": "16384",
        "--max-num-seqs": "256",
        "--max-num-batched-tokens": "16384",
        "--reasoning-parser": "deepseek_r1",
        "--tensor-parallel-size": "16",
        "--host": "0.0.0.0",  # noqa: S104
        "--port": "8000",
        "--trust-remote-code": "",
        "--gpu-memory-utilization": "0.90",
        "--distributed-executor-backend": "ray",
    }
    *exports, worker = printed(root / "nodes/h20-node02/bare.sh")
    assert shlex.join(worker) == (
        "ray start --address 10.63.65.207:8379 --node-ip-address 10.63.65.208 --num-gpus 8 --block"
    )
    assert ["export", "VLLM_HOST_IP=10.63.65.208"] in exports
    # The image's entry point is the server: Ray has to come first.
    (docker,) = printed(root / "nodes/h20-node01/docker.sh")
    inner = docker[-1]
    assert docker[docker.index("--entrypoint") + 1] == "/bin/bash"
    assert docker[-2] == "-c"
    inside = ["/mnt/models/DeepSeek-R1" if w.startswith("/ssd1/") else w for w in serve]
    assert shlex.split(inner) == [*ray, "&&", "exec", *inside]


def test_bare_and_container_run_the_same_command(tmp_path: Path) -> None:
    root = place(built(L40S), tmp_path)
    *_, bare = printed(root / "nodes/l40s-03/bare.sh")
    (docker,) = printed(root / "nodes/l40s-03/docker.sh")
    image = docker.index("lmsysorg/sglang:v0.5.16")
    assert [docker[docker.index("--entrypoint") + 1], *docker[image + 1 :]] == bare


@pytest.mark.parametrize("version", RELEASES)
def test_every_flag_is_one_of_the_engine_s(version: str) -> None:
    srt = package(version) / "srt"
    files = [srt / "server_args.py", *srt.glob("arg_groups/fields/*.py")]
    source = "\n".join(path.read_text() for path in files if path.is_file())
    words = [w for case in (L40S, H20) for w in node_commands(example(case), 0, {})[0]]
    flags = {w for w in words if w.startswith("--")}
    assert "--model-path" in flags
    if version == "0.4.4":  # which fused no shared experts by default
        flags.remove("--disable-shared-experts-fusion")
    for flag in flags:
        field = flag.removeprefix("--").replace("-", "_")
        # Newer versions make flags of their settings' names.
        assert f'"{flag}"' in source or re.search(rf"^    {field}: ", source, re.M), flag


SOURCES = {
    H20: ("sglang-0.5.16/sglang/benchmark/serving.py", "sglang-0.5.23/sglang/benchmark/serving.py"),
    RAY: ("vllm-0.24.0/vllm/benchmarks", "vllm-0.33.0/vllm/benchmarks"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_the_benchmark_of_the_readme_has_flags_of_the_engine_s(case) -> None:
    text = files_of(built(case))["README.md"].data.decode()
    (line,) = re.findall(r"^docker exec .*(?:bench_serving|bench serve).*$", text, re.M)
    flags = {word for word in shlex.split(line) if word.startswith("--")}
    assert len(flags) > 8
    for path in (Path(sys.prefix, "share/tuner/engines", source) for source in SOURCES[case]):
        source = "".join(f.read_text() for f in ([path] if path.is_file() else path.rglob("*.py")))
        assert source
        assert not [flag for flag in flags if f'"{flag}"' not in source]
        assert '"random-ids"' in source or case == RAY


def test_data_parallel_and_expert_parallel() -> None:
    dp = replace(example(H20), parallel=replace(example(H20).parallel, dp=4, ep=16))
    words = node_commands(dp, 0, {})[0]
    assert {"--dp-size": "4", "--ep-size": "16"}.items() <= options(list(words)).items()
    assert "--enable-dp-attention" in words
    ray = replace(example(RAY), parallel=replace(example(RAY).parallel, ep=16))
    assert "--enable-expert-parallel" in node_commands(ray, 0, {})[1]
    for parallel in ({"ep": 2}, {"dp": 2}):
        wrong = replace(example(RAY), parallel=replace(example(RAY).parallel, **parallel))
        with pytest.raises(MalformedCluster, match=r"parallel\.[ed]p=2: "):
            node_commands(wrong, 0, {})


def test_each_node_gives_ray_the_gpus_that_it_has() -> None:
    whole = example(RAY)
    nodes = tuple(replace(node, gpus=n) for node, n in zip(whole.nodes, (8, 4), strict=True))
    uneven = replace(whole, nodes=nodes)
    starts = [node_commands(uneven, rank, {})[0] for rank in range(2)]
    assert [options(list(words))["--num-gpus"] for words in starts] == ["8", "4"]


def test_one_node_needs_no_meeting_place() -> None:
    for case in (H20, RAY):
        whole = example(case)
        alone = replace(
            whole, nodes=(replace(whole.nodes[0], gpus=16),), engine=replace(whole.engine, flags=())
        )
        (command,) = node_commands(alone, 0, {})
        assert not {"--dist-init-addr", "--nnodes", "ray"} & set(command)


def test_an_ipv6_head_stands_in_brackets() -> None:
    assert endpoint("fd00::7", 5000) == "[fd00::7]:5000"


DOCKER = "nodes/h20-node01/docker.sh"


@pytest.mark.parametrize(
    ("folder", "file", "arguments", "codes", "says"),
    [
        ("b", DOCKER, "--dry-run", (2,), "[--print]"),
        ("a:b", DOCKER, "--print", (2,), "colon"),  # Docker could not mount it
    ],
)
def test_scripts_refuse_what_they_do_not_know(tmp_path, folder, file, arguments, codes, says):
    command = ["bash", place(built(H20), tmp_path / folder) / file, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode in codes, done.stdout) == (True, "")
    assert done.stderr and says in done.stderr


def test_a_run_replaces_the_shell_and_passes_every_word(tmp_path: Path) -> None:
    """Without --print the very words are executed: a docker that writes its arguments down."""
    root = place(built(H20), tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "docker").write_text('#!/bin/sh\nprintf "%s\\n" docker "$@"\n')
    (tools / "docker").chmod(0o755)
    script = root / "nodes/h20-node01/docker.sh"
    done = subprocess.run(
        ["bash", script],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [done.stdout.splitlines()] == printed(script)


# Noise: whatever a cluster file may hold reaches the command as the one word it is.

_NASTY = st.text(
    st.one_of(
        st.sampled_from(list("'\"`$\\;&|<>(){}[]*?!#~,:= -%@")),
        st.characters(codec="utf-8", exclude_categories=("C", "Z")),
    ),
    min_size=1,
    max_size=24,
)


def nasty(flags: list[str], name: str, value: str, case: str) -> Cluster:
    whole = example(case)
    return replace(
        whole,
        engine=replace(whole.engine, flags=tuple(flags)),
        model=replace(whole.model, name=name, path="/" + name.replace(":", "")),
        environment={"VALUE": value},
    )


# The variable of each engine's config folder.
POINTERS = {H20: ("SGLANG_MOE_CONFIG_DIR",), RAY: ("VLLM_TUNED_CONFIG_FOLDER",)}


@times(2)
@given(st.lists(_NASTY, max_size=3), _NASTY, _NASTY, st.sampled_from([H20, RAY]))
def test_nasty_words_stay_words(flags: list[str], name: str, value: str, case: str) -> None:
    cluster = nasty(flags, name, value, case)
    environment = node_environments(cluster)[0]
    commands = node_commands(cluster, 0, environment)
    for script in (docker_script, bare_script):
        text = script(cluster, 0, environment, commands, pointers=POINTERS[case])
        done = subprocess.run(
            ["bash", "-s", "--", "--print"], input=text, capture_output=True, text=True, check=True
        )
        words = [shlex.split(line) for line in done.stdout.splitlines()]
        if script is bare_script:
            assert words[-len(commands) :] == [list(command) for command in commands]
            assert ["export", f"VALUE={value}"] in words
        else:
            program, *arguments = one_line(commands)
            assert words[0][words[0].index(cluster.engine.image) + 1 :] == arguments
            assert variables(words[0])["VALUE"] == value
