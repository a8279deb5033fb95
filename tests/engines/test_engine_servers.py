"""What servers are told and asked exists in the engines' own source, release by release."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from real_sglang import package as sglang_package
from real_vllm import package as vllm_package
from served_cases import STAND_INS, exported
from tiers import only

from benchmarks.served.dummy_weights import fill_weight
from benchmarks.served.server import Server, ServerLaunch, server_of
from tuner.engines.engine import find_packages
from tuner.engines.settings import all_config_variables, config_variables, unknown_flags
from tuner.engines.sglang.package import SGLang

SGLANG = ["0.5.2", "0.5.12", "0.5.16", "0.5.23"]
VLLM = ["0.10.2", "0.15.1", "0.24.0", "0.33.0"]


def launch(version: str) -> ServerLaunch:
    return ServerLaunch(version, "/m", 8000, 2, (), dummy=True, memory=0.4)


def fields(files: Iterator[Path], name: str) -> set[str]:
    """The fields of a class and of its bases, as far as they are in these files."""
    classes = {
        node.name: node
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    def own(wanted: str) -> set[str]:
        if wanted not in classes:
            return set()
        found = {
            part.target.id
            for part in classes[wanted].body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        bases = (base.id for base in classes[wanted].bases if isinstance(base, ast.Name))
        return found.union(*map(own, bases))

    return own(name)


def posts(server: Server) -> dict[str, set[str]]:
    """The fields of all bodies by their paths."""
    found: dict[str, set[str]] = {}
    for post in (server.stream([1, 2], 4), server.greedy([1, 2], 4)):
        found.setdefault(post.path, set()).update(post.body)
    return found


@pytest.mark.parametrize("version", only(["0.5.2", "0.5.23"], SGLANG))
def test_sglang(version: str) -> None:
    root, server = sglang_package(version), server_of("sglang")
    module, *words = server.command(launch(version))
    assert module.endswith("_dummy") and (root / "launch_server.py").is_file()
    assert unknown_flags(SGLang(version, root), words) == []
    asked = posts(server)
    structures = root / "srt/managers/io_struct.py"
    assert asked["/generate"] <= fields(iter([structures]), "GenerateReqInput")
    sampling = fields(iter([root / "srt/sampling/sampling_params.py"]), "SamplingParams")
    if not sampling:  # a plain class: its parameters
        sampling = {
            *(root / "srt/sampling/sampling_params.py").read_text().replace(":", " ").split()
        }
    assert {*server.stream([1], 1).body["sampling_params"]} <= sampling
    source = (root / "srt/entrypoints/http_server.py").read_text(encoding="utf-8")
    assert all(f'"{path}"' in source for path in (*asked, server.ready_path))


@pytest.mark.parametrize("version", only(["0.10.2", "0.33.0"], VLLM))
def test_vllm(version: str) -> None:
    root, server = vllm_package(version), server_of("vllm")
    module, *words = server.command(launch(version))
    assert module.endswith("_dummy")
    source = root / "entrypoints"
    assert (source / "openai/api_server.py").is_file()
    asked = posts(server)
    assert asked["/v1/completions"] <= fields(source.rglob("*.py"), "CompletionRequest")
    told = {*server.stream([1], 1).body["stream_options"]}
    assert told <= fields(source.rglob("*.py"), "StreamOptions")
    routes = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert all(f'"{path}"' in routes for path in (*asked, server.ready_path))
    texts = routes + (root / "engine/arg_utils.py").read_text(encoding="utf-8")
    flags = [word for word in words if word.startswith("--")]
    names = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in flags}
    assert {name for name in names if name not in texts} == set()
    assert '__name__ == "__main__"' in (source / "openai/api_server.py").read_text(encoding="utf-8")


# Servers are pointed at a folder only for what it holds, as the engines' own loaders want it.


@pytest.mark.parametrize(
    ("engine", "folder", "variables"),
    [
        ("sglang", "configs/triton_3_6_0", ["SGLANG_MOE_CONFIG_DIR"]),
        ("sglang", "attention/triton_3_6_0", ["TUNER_ATTENTION_CONFIG_DIR"]),
        ("sglang", "gemm/triton_3_6_0", ["TUNER_GEMM_CONFIG_DIR"]),
        ("vllm", ".", ["VLLM_TUNED_CONFIG_FOLDER"]),
        ("vllm", "configs/triton_3_6_0", []),
    ],
)
def test_each_kind_of_file_has_its_variable(
    tmp_path: Path, engine: str, folder: str, variables: list[str]
) -> None:
    assert list(config_variables(engine, exported(tmp_path, folder=folder))) == variables
    assert {*variables} <= {*all_config_variables(engine)}


# Dummy weights of a trained model's size reach the processes in which an engine loads a model

# Engines start the processes that load a model with `spawn`, which imports the main module again.
SERVER = """
import importlib, multiprocessing

def show():
    module = importlib.import_module({module!r})
    print("filled by", module.initialize_dummy_weights.__module__, flush=True)

if __name__ == "__main__":
    show = importlib.import_module("shows").show
    child = multiprocessing.get_context("spawn").Process(target=show)
    child.start()
    child.join()
"""
FILLERS = ("initialize_dummy_weights", "initialize_single_dummy_weight")
LOADERS = {
    "sglang": ("sglang.launch_server", "sglang.srt.model_loader.loader"),
    "vllm": ("vllm.entrypoints.openai.api_server", "vllm.model_executor.model_loader.dummy_loader"),
}


def test_states_of_mamba_layers_decay():
    rates = torch.zeros(64)
    assert fill_weight(rates, "model.layers.0.mixer.A")
    assert -16 <= rates.min() < rates.max() <= -1


@pytest.mark.parametrize("engine", LOADERS)
def test_a_spawned_process_fills_weights_too(engine: str, tmp_path: Path) -> None:
    server, loader = LOADERS[engine]
    text = SERVER.format(module=loader)
    (tmp_path / "shows.py").write_text(text)
    package = tmp_path / engine
    package.mkdir()
    for folder in (STAND_INS / engine).rglob("*.py"):
        target = package / folder.relative_to(STAND_INS / engine)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(folder.read_bytes())
    Path(tmp_path, *server.split(".")).with_suffix(".py").write_text(text)
    paths = [str(tmp_path), str(STAND_INS / "light_torch"), *filter(None, sys.path)]
    run = subprocess.run(
        [sys.executable, "-m", f"benchmarks.served.{engine}_dummy"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.stdout == "filled by benchmarks.served.dummy_weights\n", run.stderr


@pytest.mark.parametrize("engine", LOADERS)
def test_every_release_has_the_function_where_it_is_replaced(engine: str) -> None:
    module = Path(*LOADERS[engine][1].split(".")[1:]).with_suffix(".py")
    roots = [package.root for package in find_packages(engine)]
    assert len(roots) > 2
    for root in roots:
        tree = ast.parse((root / module).read_text(encoding="utf-8"))
        names = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert names & called & {*FILLERS}, root
        # Whatever else fills weights is not replaced.
        assert {name for name in names | called if "dummy_weight" in name} <= {*FILLERS}, root
