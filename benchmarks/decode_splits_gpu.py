"""Decode with chosen KV splits against the engine's own rule, on one GPU.

    python benchmarks/decode_splits_gpu.py OUT [--shapes deepseek-r1,qwen3-30b-a3b]
                                               [--engine sglang==0.5.16] [--effort quick]
    compute-sanitizer python benchmarks/decode_splits_gpu.py OUT --files FOLDER --batches 8

For one rank of each shape it tunes decode at 1, 4, 16 and 64 sequences with 1,024, 8,192 and 32,768
cached tokens, as `tuner tune` does, and then times the engine's rule and the tuned plan in turn, at
other rounds than those that chose. Then it exports the winners, builds the engine's own
TritonAttnBackend without and with the plugin, captures its decode in CUDA graphs, and times both
in turn at the same points. At 50 random ragged batches it compares what both give. All of it is in
OUT/decode-splits.json, which is written anew after each part. OUT is a folder.

With exported `--files` it only compares, so that a tool can watch the launches.

The engine is looked for as `find_engine` does: TUNER_ENGINE_PATH names a folder of unpacked
packages. What else the engine would import is answered by the stand-ins of tests/engines.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from gpu_runs import RACE_ROUNDS, open_bench, spec_of, this_device

from tuner.devices.table import Device
from tuner.engines.engine import Engine, find_engine
from tuner.export import export_device
from tuner.families.attention.joint.tuning import JointRun
from tuner.families.attention.lengths import ragged
from tuner.families.attention.problem import Attention, Stage, parse_attention
from tuner.families.attention.selection import AttentionSelection
from tuner.families.attention.workloads import WorkPoint
from tuner.measure.gpu import INPUT_SEED
from tuner.measure.timing import Captured, elapsed_us, replay
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Entry
from tuner.store import Store
from tuner.tuning.request import parse_effort, parse_source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engines"))
from attention_scheduler import Stubs
from decode_scheduler import DEFAULTS, Server, Shape

# One rank: DeepSeek-R1 at TP 8; Qwen3-30B-A3B; the heads of a Llama 3 8B.
SHAPES = {
    "deepseek-r1": "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16",
    "qwen3-30b-a3b": "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16",
    "llama-3-8b": "q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16",
}
SEQUENCES, CACHED = (1, 4, 16, 64), (1024, 8192, 32768)
RAGGED = 50
LAYERS = 4  # in a graph, each with another cache
SLOTS = 1.3  # of the cache, for each cached token of the largest batch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--shapes", default="deepseek-r1,qwen3-30b-a3b")
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--files", type=Path, help="compare with these, and tune nothing")
    parser.add_argument("--batches", type=int, default=RAGGED, help="ragged batches to compare")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    device, engine = this_device(), find_engine(args.engine)
    path = args.out / "decode-splits.json"
    found: dict[str, Any] = {
        "device": device.name,
        "engine": spec_of(engine),
        "torch": torch.__version__,
        "shapes": {},
    }
    names = args.shapes.split(",")
    problems = {name: parse_attention(f"decode_attention:{SHAPES[name]}") for name in names}
    root = args.files or args.out / "configs"
    if not args.files:
        tune_all(problems, device, engine, args, found, path)
        with Store.open(f"sqlite:///{database_of(args)}") as store:
            flags = {"--attention-backend": "triton"}  # what is compared is Triton with Triton
            export_device(store, device, engine, root, allow_predicted=False, flags=flags)
    served = list(serve(problems, engine, root, args.batches, timed=not args.files))
    for name, rows in served:
        found["shapes"].setdefault(name, {}).update(rows)
        path.write_text(json.dumps(found, indent=1) + "\n")
        said = summary(rows["served"], "plugin") if rows["served"] else ""
        print(name, said, rows["ragged"], flush=True)
    if args.files:
        return
    for name, shape in found["shapes"].items():
        shape["summary"] = {
            "tuner": summary(shape["points"], "tuner"),
            "plugin": summary(shape["served"], "plugin"),
        }
        print(name, json.dumps(shape["summary"]))
    path.write_text(json.dumps(found, indent=1) + "\n")


def database_of(args: argparse.Namespace) -> Path:
    return (args.out / "decode-splits.db").resolve()


def tune_all(
    problems: dict[str, Attention],
    device: Device,
    engine: Engine,
    args: argparse.Namespace,
    found: dict[str, Any],
    path: Path,
) -> None:
    """Tune each problem, and write what was found after each."""
    database = database_of(args)
    database.unlink(missing_ok=True)
    with Workbench() as workbench:
        for name, problem in problems.items():
            begun = time.perf_counter()
            found["shapes"][name] = tuned(problem, device, engine, args.effort, database, workbench)
            found["shapes"][name]["tune_s"] = time.perf_counter() - begun
            path.write_text(json.dumps(found, indent=1) + "\n")
            print(name, summary(found["shapes"][name]["points"], "tuner"), flush=True)


def summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    gains = [row["engine_us"] / row[f"{name}_us"] for row in rows]
    geomean = math.exp(statistics.fmean(map(math.log, gains)))
    return {"geomean": geomean, "least": min(gains), "points": len(gains)}


# Through the tuner


def tuned(
    problem: Attention,
    device: Device,
    engine: Engine,
    effort: str,
    database: Path,
    workbench: Workbench,
) -> dict[str, Any]:
    """Tunes a shape, and races what was chosen against the engine's own."""
    work = tuple(WorkPoint(n, 1, cached) for n in SEQUENCES for cached in CACHED)
    request = Request(
        problem=problem,
        device=device,
        engine=engine,
        source=parse_source("gpu"),
        selection=AttentionSelection(work),
        effort=parse_effort(effort),
    )
    run = open_run(request, workbench)
    assert isinstance(run, JointRun)
    with run, Store.open(f"sqlite:///{database.resolve()}") as store:
        report = run.run(store, progress=lambda trial: None)
    print(report.as_text(), flush=True)
    entries = report.entries
    return {
        "problem": problem.spec(),
        "totals": report.as_json()["totals"],
        "points": list(raced(run, problem, device, engine, entries, workbench)),
    }


def raced(
    run: JointRun,
    problem: Attention,
    device: Device,
    engine: Engine,
    entries: Sequence[Entry],
    workbench: Workbench,
) -> Iterator[dict[str, Any]]:
    """Both kernels' times at each point, the engine's and the tuned ones in turn."""
    by_size: dict[tuple[int, int], dict[Stage, Entry]] = {}
    for entry in entries:
        assert isinstance(entry.point.part, Stage)
        size = entry.point.batch_size, entry.point.cached_tokens
        by_size.setdefault(size, {})[entry.point.part] = entry
    points = [entry.point for entry in entries]
    bench = open_bench(problem, device, engine, points, workbench, run._binder())
    with closing(bench):
        for (sequences, cached), parts in by_size.items():
            row: dict[str, Any] = {"sequences": sequences, "cached": cached}
            for stage, entry in parts.items():
                own = entry.incumbents["default"].config
                both = [Candidate(entry.point, c) for c in dict.fromkeys([own, entry.config])]
                times = {c.config: us for c, us in bench.race(both, RACE_ROUNDS).items()}
                row[stage.value] = {
                    "engine_us": times[own].median_us,
                    "tuner_us": times[entry.config].median_us,
                    "config": dict(entry.config),
                    "reason": entry.reason,
                }
            for name in ("engine_us", "tuner_us"):
                row[name] = sum(row[stage.value][name] for stage in parts)
            row["gain"] = row["engine_us"] / row["tuner_us"]
            yield row


# Through the engine's own backend


def serve(
    problems: dict[str, Attention], engine: Engine, root: Path, batches: int, *, timed: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Times the engine's decode without and with the plugin, and compares the outputs."""
    sys.meta_path.insert(0, Stubs(engine.root, engine.version))
    importlib.import_module("sglang.srt.managers.scheduler")
    plain = {name: Server(DEFAULTS, shape_of(problem)) for name, problem in problems.items()}
    os.environ["TUNER_ATTENTION_CONFIG_DIR"] = str(root)
    importlib.import_module("tuner.engines.sglang.plugin").register()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
    for name, problem in problems.items():
        own = plain.pop(name)
        ours = Server(DEFAULTS, own.shape, beside=own)
        assert "get_num_kv_splits" in vars(ours.backend), "the plugin gave the backend no table"
        graphs = {n: [Graph(server, n) for server in (own, ours)] for n in SEQUENCES}
        points = [(n, cached) for n in SEQUENCES for cached in CACHED] if timed else []
        rows = [at_point(problem, graphs[n], n, cached) for n, cached in points]
        yield name, {"served": rows, "ragged": compared(graphs, batches)}
        del own, ours, graphs
        torch.cuda.empty_cache()


def shape_of(problem: Attention) -> Shape:
    properties = torch.cuda.get_device_properties(0)
    return Shape(
        heads=problem.q_heads,
        key_heads=problem.kv_heads,
        Lq=problem.Lq,
        Lv=problem.Lv,
        sequences=max(SEQUENCES),
        context=int(SLOTS * max(CACHED)),
        places=int(SLOTS * max(SEQUENCES) * max(CACHED)),
        layers=LAYERS,
        dtype=torch.bfloat16,
        device="cuda",
        cores=properties.multi_processor_count,
        use_pdl=properties.major >= 9,
    )


class Graph:
    """A backend's decode at one number of sequences, captured once for all lengths."""

    def __init__(self, server: Server, sequences: int) -> None:
        self.server = server
        if not hasattr(server.backend, "cuda_graph_attn_logits"):
            server.backend.init_cuda_graph_state(server.shape.sequences, server.shape.sequences)
        filled = server.batch([1] * sequences)
        self.q = server.queries(filled)
        server.prepare(filled, capture=True)
        self.metadata = server.backend.forward_metadata
        for layer in range(LAYERS):  # loads the kernels
            self.outputs = server.decode(filled, self.q, layer)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = [server.decode(filled, self.q, layer) for layer in range(LAYERS)]

    def prepare(self, lengths: Sequence[int]) -> None:
        self.server.prepare(self.server.batch(list(lengths)), capture=False)

    def results(self, lengths: Sequence[int], q: torch.Tensor) -> torch.Tensor:
        self.prepare(lengths)
        self.q.copy_(q)
        for output in self.outputs:
            output.fill_(float("nan"))
        self.graph.replay()
        return torch.stack(self.outputs).float()


def at_point(
    problem: Attention, graphs: Sequence[Graph], sequences: int, cached: int
) -> dict[str, Any]:
    """The times of a replay, for one layer, and of the metadata before it."""
    lengths = ragged(problem, Point(sequences, Stage.DECODE, 1, cached), INPUT_SEED).cached
    q = torch.randn_like(graphs[0].q)
    own, ours = (graph.results(lengths, q) for graph in graphs)
    samples: list[list[float]] = [[], []]
    timed = [Captured(graph.graph, graph.outputs) for graph in graphs]
    for graph in timed:
        replay(graph)
    for turn in range(RACE_ROUNDS):
        for at in (0, 1) if turn % 2 else (1, 0):
            samples[at].append(replay(timed[at])[0])
    engine_us, plugin_us = map(statistics.median, samples)
    return {
        "sequences": sequences,
        "cached": cached,
        "engine_us": engine_us,
        "plugin_us": plugin_us,
        "gain": engine_us / plugin_us,
        "difference": difference(own, ours),
        "splits": graphs[1].metadata.num_kv_splits[:sequences].tolist()[:8],
        "engines_splits": graphs[0].metadata.num_kv_splits[:sequences].tolist()[:8],
        "splits_us": [written_us(graph, lengths) for graph in graphs],
    }


def written_us(graph: Graph, lengths: Sequence[int]) -> float:
    """Microseconds that writing the splits takes on the GPU, as a step of many."""
    backend, batch = graph.server.backend, graph.server.batch(list(lengths))
    numbers = graph.metadata.num_kv_splits[: len(lengths)]

    def write(times: int) -> None:
        for _ in range(times):
            backend.get_num_kv_splits(numbers, batch.seq_lens)

    write(3)
    return elapsed_us(lambda: write(100)) / 100


def difference(own: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference, in units of the root mean square; nan if an output is."""
    return float((own - ours).abs().max() / own.square().mean().sqrt())


def compared(graphs: dict[int, list[Graph]], batches: int) -> dict[str, Any]:
    """The largest difference of the outputs over random ragged batches."""
    rng = random.Random(INPUT_SEED)  # noqa: S311 (no secret)
    worst, most = 0.0, 0
    for at in range(batches):
        sequences = SEQUENCES[at % len(SEQUENCES)]
        lengths = [round(math.exp(rng.uniform(0, math.log(max(CACHED))))) for _ in range(sequences)]
        q = torch.randn_like(graphs[sequences][0].q)
        own, ours = (graph.results(lengths, q) for graph in graphs[sequences])
        found = difference(own, ours)
        worst = found if math.isnan(found) else max(worst, found)
        most = max(most, int(graphs[sequences][1].metadata.num_kv_splits[:sequences].max()))
    return {"batches": batches, "worst_difference": worst, "most_splits": most}


if __name__ == "__main__":
    main()
