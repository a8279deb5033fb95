"""Runs one engine's attention kernels on the CPU and writes each case's worst error as JSON.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python interpret_attention.py 0.5.16 CACHE_FOLDER [CASE...]
"""

import json
import sys
from pathlib import Path

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.attention.inputs import compared, launch, make_inputs, output_of, reference
from tuner.families.attention.problem import AttentionPhase, parse_attention
from tuner.families.attention.splits import EDGES, Lengths
from tuner.kernels.lift import load_lifted
from tuner.measure.timing import Reference
from tuner.problems.points import Config, Point

GQA = "q_heads=4,kv_heads=2,Lq=32,Lv=32,dtype=float16"
# For what is the same with several key heads.
MQA = "q_heads=2,kv_heads=1,Lq=32,Lv=32,dtype=float16"
MLA = "q_heads=4,kv_heads=1,Lq=288,Lv=256,dtype=float16"
FEW = {"BLOCK_M": 32, "BLOCK_N": 64}  # several for each sequence; smaller ones take thrice as long
# name -> (problem, what to change of the engine's own constants)
CASES = {
    "extend": (f"extend_attention:{GQA}", FEW),
    "extend own blocks": (f"extend_attention:{GQA}", {}),
    "extend latent": (f"extend_attention:{MLA}", FEW),
    "extend 192": ("extend_attention:q_heads=2,kv_heads=2,Lq=192,Lv=128,dtype=float16", FEW),
    "extend odd heads": ("extend_attention:q_heads=2,kv_heads=1,Lq=80,Lv=80,dtype=float16", FEW),
    "extend window": (f"extend_attention:{MQA},window=20", FEW),
    "extend sinks": (f"extend_attention:{MQA},sinks", FEW),
    "extend capped": (f"extend_attention:{MQA},logit_cap=3", FEW),
    "extend paged": (f"extend_attention:{MQA},page_size=16", FEW),
    "prefill": (f"prefill_attention:{GQA}", FEW),
    "decode grouped": (f"decode_attention:{GQA}", {"BLOCK_N": 16}),
    "decode latent": (f"decode_attention:{MLA}", {"BLOCK_N": 64}),
    "decode latent values": (f"decode_attention:{MLA}", {"BLOCK_N": 32, "HAS_MLA": 0}),
    "decode wide group": (
        "decode_attention:q_heads=32,kv_heads=1,Lq=32,Lv=32,dtype=float16",
        {"BLOCK_N": 32, "BLOCK_H": 32},
    ),
    "decode alone": ("decode_attention:q_heads=2,kv_heads=2,Lq=32,Lv=32,dtype=float16", {}),
    "decode capped": (f"decode_attention:{MQA},logit_cap=3", {"BLOCK_N": 64}),
    "decode sinks": (f"decode_attention:{MQA},sinks", {}),
    "decode splits": (f"decode_attention:{MQA},kv_splits=3", {"BLOCK_N": 64}),
}
# These have all lengths that a GPU is checked with, the others fewer.
ALL_LENGTHS = ("extend", "prefill", "decode grouped", "decode latent")
SHORT = {
    **EDGES,
    AttentionPhase.EXTEND: Lengths(new=(33, 0, 1, 40), cached=(0, 50, 70, 1)),
    AttentionPhase.DECODE: Lengths(new=(1, 1, 1), cached=(70, 0, 1)),
}
TARGET = cuda_target(8, 9)
CORES = 4


def run(kernels, folder, edges, text, changes):
    """The worst error over the sequences that have an output."""
    problem = parse_attention(text)
    lengths = edges[problem.phase]
    module = load_lifted(kernels.lifted(problem.phase).write(folder))
    inputs = make_inputs(kernels, problem, lengths, device="cpu", seed=3, cores=CORES)
    inputs.output.fill_(float("nan"))
    for part in problem.parts:
        point = Point(len(lengths.new), part, lengths.longest_new, max(lengths.cached))
        config = kernels.default_config(problem, point, TARGET)
        own = {name: value for name, value in changes.items() if name in config}
        launch(module, kernels, problem, point, Config({**config, **own}), TARGET, inputs.tensors)
    return max(
        Reference(reference(inputs, i)).worst_error(output_of(inputs, i)) for i in compared(inputs)
    )


def main():
    kernels = lift_attention(find_engine(f"sglang=={sys.argv[1]}"))
    found = {}
    for name in sys.argv[3:] or CASES:
        try:
            edges = EDGES if name in ALL_LENGTHS else SHORT
            found[name] = run(kernels, Path(sys.argv[2]), edges, *CASES[name])
        except UnsupportedKernel as refusal:
            found[name] = str(refusal)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
