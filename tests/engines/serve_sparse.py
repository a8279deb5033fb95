"""Runs sglang's launchers of MiniMax's sparse attention on the CPU, with the plugin.

Writes what they would launch as JSON.

This is a separate program, because it replaces sglang's packages and Triton's launches:
TUNER_ENGINE_PATH=FOLDER TUNER_SCAN_CONFIG_DIR=FOLDER python serve_sparse.py VERSION PROBLEM
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import triton
from benchmark_scripts import load_script

from tuner.engines.sglang.plugin import scan as plugin
from tuner.families.minimax_sparse import inputs
from tuner.families.minimax_sparse.problem import SparseKernel, parse_minimax_sparse
from tuner.families.scans.serve import ServerFacts
from tuner.problems.points import Point


def main() -> None:
    version, text = sys.argv[1:]
    problem, point = parse_minimax_sparse(text), Point(2, SparseKernel.SCORES, 32)
    starts, launched = load_script("scan_starts.py"), {}
    facts = "sglang", version, "NVIDIA_H200", triton.__version__
    plugin._facts = lambda: ServerFacts(*facts, lambda family: "kernels")

    def run(kernel, *args, grid, warmup, **given):
        blocks = grid(given) if callable(grid) else grid
        launched[kernel.__name__] = {**given, "grid": blocks}

    triton.JITFunction.run = run
    triton.runtime.autotuner.Autotuner.run = lambda *args, **given: 1 / 0  # nothing may be tuned
    module = starts.stand_in("sglang", version, "minimax_sparse")
    plugin.hook_scan(Path(os.environ["TUNER_SCAN_CONFIG_DIR"]))
    prompt = inputs.make_prompt(problem, point, device="cpu", seed=7)
    given, about = inputs.views(problem, prompt), inputs.layout(problem, point, "cpu")
    starts.sparse_call(importlib.import_module(module), problem, given, about)()
    json.dump(launched, sys.stdout)


if __name__ == "__main__":
    main()
