"""A thousand launches of bad kernels: what becomes of each, and of the machine.

    python benchmarks/h200/planted.py OUT.json [LAUNCHES]

An engine is made up in a temporary folder: the installed sglang's config files beside a kernel of
ours that is right where GROUP_SIZE_M is 1 and bad on purpose where it is not. A tuning
run over good and bad candidates must end with the right status for each, choose no bad one, and
leave no process and no GPU memory behind. Needs the GPU and an sglang on disk.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.engines.sglang.fused_moe.binding import lift_fused_moe
from tuner.export import export_device
from tuner.families.fused_moe.choose import MoeChooser, Policy
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import open_gpu_bench
from tuner.measure.gpu_worker import Limits
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.records import RunKey
from tuner.problems.registry import parse_problem
from tuner.problems.results import Environment, MeasureKind, Trial
from tuner.store import Store
from tuner.tuning.tune import FixedStrategy, Plan, tune

PROBLEM = parse_problem("fused_moe:E=8,N=128,K=256,top_k=2,dtype=bfloat16")
VERSION = "9.9.9"
KERNEL = Path(__file__).with_name("planted_kernel.py")
# What GROUP_SIZE_M asks of the planted kernel, and how many of a thousand launches ask for it.
GOOD, NAN, WRONG_ROW, ILLEGAL_ADDRESS, ENDLESS = 1, 2, 3, 4, 5
SHARE = {NAN: 0.40, WRONG_ROW: 0.40, ILLEGAL_ADDRESS: 0.06, ENDLESS: 0.02}
OUT_OF_SHARED = 0.12
EXPECTED = {
    NAN: "wrong_result",
    WRONG_ROW: "wrong_result",
    ILLEGAL_ADDRESS: "crashed",
    ENDLESS: "timed_out",
    GOOD: "ok",
}
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def config(block_m: int, group: int, stages: int = 2, block_n: int = 32, warps: int = 4) -> Config:
    return Config(
        {
            "BLOCK_SIZE_M": block_m,
            "BLOCK_SIZE_N": block_n,
            "BLOCK_SIZE_K": 64,
            "GROUP_SIZE_M": group,
            "num_warps": warps,
            "num_stages": stages,
        }
    )


def planted(count: int) -> list[Candidate]:
    """`count` different bad candidates, the kinds mixed."""
    points = [Point(size, gemm) for size in SIZES for gemm in Gemm]
    shapes = [(m, n, w, s) for m in (16, 32) for n in (32, 64) for w in (2, 4) for s in (2, 3, 4)]
    found: list[Candidate] = []
    for group, share in SHARE.items():
        some = [
            Candidate(point, config(m, group, s, n, w)) for m, n, w, s in shapes for point in points
        ]
        found += some[: round(count * share)]
    huge = [
        Candidate(point, config(256, group, stages, 256, 8))
        for stages in (7, 8, 9, 10, 11)
        for group in (1, 2)
        for point in points
    ]
    found += huge[: count - len(found)]
    random.Random(0).shuffle(found)  # noqa: S311 (no secret)
    return found


def made_up_engine(folder: Path) -> None:
    real = find_engine("sglang")
    root = folder / f"sglang-{VERSION}" / "sglang"
    loader = moe_engine(real).package_root
    shutil.copytree(loader, root / loader.relative_to(real.root))
    (root / "__init__.py").touch()
    (root / "version.py").write_text(f'__version__ = "{VERSION}"\n')
    target = root / "kernels" / "ops" / "moe" / "fused_moe_triton_kernels.py"
    target.parent.mkdir(parents=True)
    shutil.copy(KERNEL, target)
    os.environ["TUNER_ENGINE_PATH"] = str(folder)


def gpu_used_mib() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]
    )


def children() -> list[str]:
    """This process's children, zombies included."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(f"{stat.parent.name} {fields[0]}")
    return found


def status_expected(candidate: Candidate) -> str:
    if candidate.config["BLOCK_SIZE_N"] == 256:
        return "out_of_resources"
    return EXPECTED[candidate.config["GROUP_SIZE_M"]]


def main() -> None:
    out, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    device = find_device("H200")
    before_mib, started = gpu_used_mib(), time.perf_counter()
    bad = planted(count)
    good = [Candidate(Point(s, g), config(m, GOOD)) for s in SIZES for g in Gemm for m in (16, 32)]
    with tempfile.TemporaryDirectory() as folder:
        made_up_engine(Path(folder))
        engine = find_engine(f"sglang=={VERSION}")
        lifted = lift_fused_moe(engine)
        store = Store.open(f"sqlite:///{folder}/store.db")
        points = sorted({candidate.point for candidate in good})
        incumbents = {point: {"default": config(16, GOOD)} for point in points}
        chooser = MoeChooser(incumbents, Policy(noise=0.004), set(SIZES))
        plan = Plan(points, incumbents, chooser)
        key = RunKey(
            PROBLEM,
            Environment(device.name, engine.name, engine.version, "3.6.0", lifted.lifted.hash),
            MeasureKind.GPU,
            "planted",
            0,
            tuple(points),
            "planted",
        )
        run = store.begin_run(key)
        trials: list[Trial] = []
        with Farm(cache_dir=Path(folder) / "cache") as farm:
            bench = open_gpu_bench(
                KernelCompiler(farm, lifted.binder(PROBLEM, device.target), device),
                farm,
                engine=f"sglang=={VERSION}",
                problem=PROBLEM,
                device=device,
                gpu="0",
                routing=None,
                points=points,
                limits=Limits(request_s=3.0, replacements=count),
            )
            strategy = FixedStrategy([*bad, *good])
            entries = tune(
                plan,
                strategy,
                bench,
                store.trials(run),
                partial(store.add_trials, run),
                trials.append,
                bench,
            )
            store.finish_run(run, entries, bench.totals)
            bench.close()
        report = export_device(store, device, engine, Path(folder) / "out", allow_predicted=False)
        exported = [c for file in report.files for c in file.entries.values()]
        store.close()
    wrong = [
        (str(t.candidate.point), t.candidate.config.key, t.measurement.status.value)
        for t in trials
        if t.measurement.status.value != status_expected(t.candidate)
    ]
    result = {
        "planted": len(bad),
        "good": len(good),
        "statuses": Counter(t.measurement.status.value for t in trials),
        "unexpected": wrong,
        "exported_entries": len(exported),
        "exported_bad": sum(c["GROUP_SIZE_M"] != GOOD for c in exported),
        "children_replaced": bench.totals.extra["children_replaced"],
        "children_left": children(),
        "gpu_mib_before": before_mib,
        "gpu_mib_after": gpu_used_mib(),
        "wall_s": time.perf_counter() - started,
    }
    out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1)[:3000])


if __name__ == "__main__":
    main()
