"""Every configuration of attention's spaces on one GPU: a table to search and predict against.

    python benchmarks/h200/attention_sweep.py OUT.csv.gz [LIMIT_S [PREFIX]]

One row a trial. With a limit, no problem is begun after so many seconds; with a prefix, only
those that begin so are.
"""

from __future__ import annotations

import csv
import gzip
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import find_device
from tuner.engines.engine import Engine, find_engine
from tuner.engines.sglang.attention.binding import lift_attention
from tuner.families.attention.problem import parse_attention
from tuner.families.attention.space import attention_space
from tuner.measure.gpu import open_gpu_bench
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Trial

Row = list[Any]

GQA = "q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16"
GQA64 = "q_heads=32,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
QWEN3 = "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
GPT_OSS = "q_heads=64,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16"
# (problem, points as (sequences, new tokens, cached tokens))
SWEEP = [
    (f"extend_attention:{MLA}", [(4, 256, 4096), (1, 1024, 0), (1, 128, 32768)]),
    (
        f"decode_attention:{MLA},kv_splits=8",
        [(64, 1, 4096), (1, 1, 1024), (1, 1, 32768), (128, 1, 32768)],
    ),
    (f"decode_attention:{MLA},kv_splits=256", [(1, 1, 8192), (32, 1, 1024), (128, 1, 4096)]),
    (f"extend_attention:{GQA}", [(4, 512, 4096), (1, 2048, 0)]),
    (f"decode_attention:{GQA},kv_splits=8", [(32, 1, 4096), (1, 1, 32768)]),
    (f"decode_attention:{GQA},kv_splits=32", [(32, 1, 4096), (1, 1, 32768)]),
    (f"extend_attention:{GQA64}", [(8, 512, 2048)]),
    (f"extend_attention:{QWEN3}", [(4, 512, 4096), (1, 128, 1024)]),
    (f"decode_attention:{QWEN3},kv_splits=8", [(1, 1, 4096), (32, 1, 4096), (128, 1, 2048)]),
    (f"extend_attention:{GPT_OSS},sinks", [(4, 512, 4096)]),
    (f"extend_attention:{GPT_OSS},window=127,sinks", [(4, 512, 127), (1, 1024, 0)]),
    (
        f"decode_attention:{GPT_OSS},kv_splits=8,sinks",
        [(1, 1, 8192), (32, 1, 4096), (128, 1, 2048)],
    ),
    (
        "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16",
        [(1, 2048, 0), (4, 512, 2048)],
    ),
    (
        "decode_attention:q_heads=16,kv_heads=16,Lq=128,Lv=128,dtype=bfloat16,kv_splits=8",
        [(32, 1, 4096)],
    ),
    (f"prefill_attention:{GQA}", [(4, 1024, 0)]),
]
COLUMNS = ("problem", "part", "batch_size", "new_tokens", "cached_tokens", "config", "is_default")
FIGURES = ("compile_status", "shared_bytes", "n_regs", "n_spills", "status", "median_us", "detail")


def sweep(
    farm: Farm, engine: Engine, text: str, sizes: Sequence[tuple[int, int, int]]
) -> Iterator[Row]:
    """The rows of one problem's trials."""
    device, problem = find_device("H200"), parse_attention(text)
    kernels = lift_attention(engine)
    points = [Point(b, part, new, c) for b, new, c in sizes for part in problem.parts]
    compiler = KernelCompiler(farm, kernels.binder(problem, device.target), device)
    name = f"{engine.name}=={engine.version}"
    bench = open_gpu_bench(
        compiler,
        farm,
        engine=name,
        problem=problem,
        device=device,
        gpu="0",
        routing=None,
        points=points,
    )
    default = {p: kernels.default_config(problem, p, device.target) for p in points}
    configs = {
        p: {default[p], *attention_space(problem, device, p.part, default[p]).configs()}
        for p in points
    }
    try:
        bench.submit([Candidate(p, c) for p in points for c in [default[p]]])
        bench.submit([Candidate(p, c) for p in points for c in sorted(configs[p] - {default[p]})])
        while trials := bench.poll(wait=True):
            for trial in trials:
                yield row(text, trial, trial.candidate.config == default[trial.candidate.point])
    finally:
        bench.close()


def row(text: str, trial: Trial, is_default: bool) -> Row:
    point, compiled, measured = trial.candidate.point, trial.compiled, trial.measurement
    return [
        *(text, point.part.value, point.batch_size, point.new_tokens, point.cached_tokens),
        *(trial.candidate.config.key, int(is_default)),
        *(compiled.status.value, compiled.shared_bytes, compiled.n_regs, compiled.n_spills),
        *(measured.status.value, measured.median_us, measured.detail[:120]),
    ]


def main() -> None:
    limit_s = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    prefix = sys.argv[3] if len(sys.argv) > 3 else ""
    started = time.monotonic()
    engine = find_engine("sglang")
    with (
        gzip.open(Path(sys.argv[1]), "wt", newline="") as stream,
        Farm(spare_cores=1) as farm,
    ):
        writer = csv.writer(stream)
        writer.writerow([*COLUMNS, *FIGURES])
        for text, sizes in (row for row in SWEEP if row[0].startswith(prefix)):
            begun = time.monotonic()
            if begun - started > limit_s:
                print(f"no time for {text}")
                continue
            rows: list[Row] = []
            try:
                for found in sweep(farm, engine, text, sizes):
                    rows.append(found)
                    writer.writerow(found)
            except Exception as error:  # the other problems are worth having
                print(f"{text}: {type(error).__name__}: {error}")
            stream.flush()
            print(f"{text}: {len(rows)} trials, {time.monotonic() - begun:.1f} s", flush=True)
            summary(rows)


def summary(rows: Sequence[Row]) -> None:
    """The best of each point against the engine's own constants."""
    for key in dict.fromkeys(tuple(r[1:5]) for r in rows):
        some = [r for r in rows if tuple(r[1:5]) == key and r[-2] is not None]
        own = next((r[-2] for r in some if r[6]), None)
        best = min(some, key=lambda r: r[-2], default=None)
        bad = sum(1 for r in rows if tuple(r[1:5]) == key and r[-3] not in ("ok",))
        if best is not None and own is not None:
            print(f"  {key}: {own:.1f} -> {best[-2]:.1f} us {own / best[-2]:.3f}x {best[5]}", bad)


if __name__ == "__main__":
    main()
