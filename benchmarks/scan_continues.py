"""Check configurations of sglang's Mamba-2 kernels with prompts that continue.

    python benchmarks/scan_continues.py sglang==0.5.16 [--configs 8]

A server runs other variants of the kernels for each part of a prompt after its first one: they
begin with the states that the part before it left. The tuner measures and checks prompts from their
beginning alone, and the server gives both the same configuration. This program runs sglang's own
launchers with prompts that continue, which end inside chunks of tokens, and compares outputs and
last states with a float32 loop over the tokens. Each kernel has a process, which tries the engine's
own configuration, and then --configs of those that a tuning run may choose, drawn with a fixed
seed. It prints a JSON object; exit code 1: a configuration is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from scan_starts import NANO, stand_in
from torch import Tensor
from torch.nn.functional import softplus

from tuner.devices.table import find_device
from tuner.families.scans.chunk_scan.kernels import SCAN
from tuner.families.scans.chunk_scan.problem import ChunkScan, SsdKernel
from tuner.families.scans.scan import scan_of
from tuner.families.scans.space import scan_space
from tuner.measure.this_gpu import local_name
from tuner.measure.timing import Reference
from tuner.problems.points import Config, Point

# Tokens of each prompt: one chunk of 128 has tokens of three prompts.
LENGTHS = (200, 300, 5, 7, 256, 77)
NEW = (1, 4)  # the prompts that begin with zeros, as new prompts in such a batch do


class Continued:
    """Prompts that continue, in a batch, with the right answer."""

    def __init__(self, problem: ChunkScan, device: str) -> None:
        inputs = scan_of(problem).inputs
        total, sequences = sum(LENGTHS), len(LENGTHS)
        prompt = inputs.make_prompt(
            problem, Point(1, problem.parts[0], total), device=device, seed=7
        )
        self._given: dict[str, Tensor] = inputs.views(problem, prompt)
        self._ends = torch.tensor([0, *LENGTHS], device=device, dtype=torch.int32).cumsum(0).int()
        shape = (sequences, problem.heads, problem.head_dim, problem.state_size)
        generator = torch.Generator(device).manual_seed(8)
        kept = getattr(torch, problem.state_dtype)
        self._begin = torch.randn(shape, device=device, generator=generator).to(kept)
        self._begin[list(NEW)] = 0
        self._size, self._kept = problem.chunk_size, kept
        out, last = self._expected()
        self._out, self._last = Reference(out), Reference(last)

    def error(self, combined: Any) -> float:  # noqa: ANN401  # the engine's module
        """Return the worst error of the engine's outputs and last states."""
        out = torch.full_like(self._given["x"], torch.nan, memory_format=torch.contiguous_format)
        tensors = {**self._given, "out": out}
        batched = {name: t if t.dim() == 1 else t[None] for name, t in tensors.items()}
        device, ends = out.device, self._ends.tolist()
        lengths = torch.tensor(LENGTHS, device=device)
        whose = torch.arange(len(LENGTHS), device=device, dtype=torch.int32)
        # The engine cuts the tokens at each chunk and at each prompt.
        starts = sorted({*range(0, ends[-1], self._size), *ends[:-1]})
        _, last = combined.mamba_chunk_scan_combined(
            **batched,
            chunk_size=self._size,
            initial_states=self._begin,
            seq_idx=whose.repeat_interleave(lengths)[None],
            chunk_indices=torch.tensor([at // self._size for at in starts], device=device).int(),
            chunk_offsets=torch.tensor([at % self._size for at in starts], device=device).int(),
            cu_seqlens=self._ends,
            dt_softplus=True,
            state_dtype=self._kept,
            return_varlen_states=True,
            return_intermediate_states=True,
        )[:2]
        return max(self._out.worst_error(out), self._last.worst_error(last))

    def _expected(self) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last states, a token at a time in float32."""
        given = {name: t.float() for name, t in self._given.items()}
        dt = softplus(given["dt"] + given["dt_bias"])
        each = given["x"].shape[1] // given["B"].shape[1]  # heads of a group
        B, C = (given[name].repeat_interleave(each, dim=1) for name in ("B", "C"))
        out, last, at = torch.empty_like(given["x"]), [], 0
        for length, begin in zip(LENGTHS, self._begin, strict=True):
            state = begin.float()
            for token in range(at, at + length):
                decay = torch.exp(dt[token] * given["A"])[:, None, None]
                added = (dt[token][:, None] * given["x"][token])[..., None] * B[token][:, None, :]
                state = decay * state + added
                out[token] = torch.einsum("hpn,hn->hp", state, C[token])
            last.append(state)
            at += length
        return out + given["x"] * given["D"][:, None], torch.stack(last)


def give(kind: Any, chosen: Mapping[str, Mapping[str, int]]) -> None:  # noqa: ANN401  # a class
    """Have kernels launched with what `chosen` has by their names; a later change of it counts."""
    launch = kind.run

    def run(kernel: Any, *args: object, **given: Any) -> object:  # noqa: ANN401
        return launch(kernel, *args, **{**given, **chosen.get(kernel.__name__, {})})

    kind.run = run


def one_of_each(combined: Any) -> None:  # noqa: ANN401  # the engine's module
    """Leave one configuration to kernels that choose, so that they do not measure."""
    package = combined.__name__.rpartition(".")[0]
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    for found in [value for module in modules for value in vars(module).values()]:
        if isinstance(found, triton.runtime.Autotuner):
            found.configs = found.configs[:1]


def tried(
    part: SsdKernel, configs: Sequence[Config], error: Callable[[], float], chosen: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the worst error of each configuration of a kernel; None if it does not fit."""
    kernels = {name for call in SCAN.kernels[part].calls for name in call.kernels}
    found = []
    for config in (None, *configs):
        chosen.clear()
        chosen.update({name: dict(config) for name in kernels} if config else {})
        try:
            worst: float | None = error()
        except triton.runtime.errors.OutOfResources:
            worst = None
        found.append({"kernel": part.value, "config": config and dict(config), "error": worst})
    return found


def check_part(spec: str, problem: ChunkScan, part: SsdKernel, count: int) -> list[dict[str, Any]]:
    """Return what `tried` does for configurations of one kernel on this GPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    engine, version = spec.split("==")
    batch = Continued(problem, "cuda")
    combined = importlib.import_module(stand_in(engine, version, problem.family))
    chosen: dict[str, Any] = {}
    give(triton.JITFunction, chosen)
    one_of_each(combined)
    legal = scan_space(problem, part, find_device(local_name())).configs()
    configs = random.Random(0).sample(legal, min(count, len(legal)))
    return tried(part, configs, lambda: batch.error(combined), chosen)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", help="sglang==VERSION")
    parser.add_argument("--problem", default=NANO)
    parser.add_argument("--configs", type=int, default=8, help="of each kernel")
    parser.add_argument("--kernel", choices=[part.value for part in SsdKernel])
    options = parser.parse_args()
    problem = ChunkScan.parse(options.problem)
    if options.kernel:
        part = SsdKernel(options.kernel)
        print(json.dumps(check_part(options.engine, problem, part, options.configs)))
        return 0
    command = [sys.executable, __file__, *sys.argv[1:], "--kernel"]
    children = [
        subprocess.Popen([*command, part.value], stdout=subprocess.PIPE, text=True)
        for part in problem.parts
    ]
    rows = [row for child in children for row in json.loads(child.communicate()[0])]
    bound = SCAN.worst_error[problem.dtype]
    wrong = [row for row in rows if row["error"] is not None and not row["error"] <= bound]
    kernels: dict[str, Any] = {}
    for row in rows:
        kernels.setdefault(row["kernel"], []).append(row["error"])
    about = {"engine": options.engine, "problem": problem.spec(), "bound": bound}
    about |= {"card": torch.cuda.get_device_name(), "triton": triton.__version__}
    print(json.dumps({**about, "errors": kernels, "wrong": wrong}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
