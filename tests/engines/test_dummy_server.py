"""Dummy weights of a trained model's size reach the processes in which an engine loads a model."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from served_cases import STAND_INS

from tuner.engines.dummy_weights import fill_weight
from tuner.engines.engine import find_packages

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
    "vllm": (
        "vllm.entrypoints.openai.api_server",
        "vllm.model_executor.model_loader.dummy_loader",
    ),
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
        [sys.executable, "-m", f"tuner.engines.{engine}.dummy_server"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.stdout == "filled by tuner.engines.dummy_weights\n", run.stderr


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
