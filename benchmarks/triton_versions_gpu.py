"""Whether the best configuration of a fused-MoE gemm changes between two releases of Triton.

    python benchmarks/triton_versions_gpu.py prepare ARCHIVE [--new 3.8.0] [--best 20]
    python benchmarks/triton_versions_gpu.py time ARCHIVE OUT.json

`prepare` needs no GPU. It compiles the fastest configurations of a recording with the installed
Triton and with a newer one, and writes one zip archive of some megabytes. `time` needs one GPU of
the architecture and the packages torch, triton (the older one), packaging and platformdirs, but
neither an engine nor the newer Triton: it loads the machine code of both through the CUDA driver.
It checks each kernel's outputs and then times all kernels of a point in turn, in CUDA graphs with
cold weights, as `tuner tune` does. At each point it also times the best configuration through
Triton's own launcher, to show that the two ways to launch agree. The result is written anew after
each point, so that a limit keeps what is done.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tuner.compile.cubin import resources
from tuner.compile.elf import sections
from tuner.compile.environment import TritonRelease, installed_triton, worker_env
from tuner.devices.target import Target, cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.triton_release import find_triton
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm, gemm_of
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.kernels import binding as bindings
from tuner.kernels.binding import Binding
from tuner.kernels.lift import Parameter
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem

RECORDING = Path("tests/data/recordings/h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz")
ROUNDS = 15
NOISE = 0.004  # a smaller difference is none; see `NOISE` in tuner/tuning/run.py
SCRATCH = 2  # Triton 3.6 and 3.8 add two pointers to a kernel's parameters, null where unused
INPUT_SEED = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("prepare")
    one.add_argument("archive", type=Path)
    one.add_argument("--new", default="3.8.0")
    one.add_argument("--engine", default="sglang==0.5.16")
    one.add_argument("--arch", type=int, default=90)
    one.add_argument("--best", type=int, default=20, help="configurations of each point")
    one.add_argument("--batch-sizes", default="", help="default: the recording's")
    two = parts.add_parser("time")
    two.add_argument("archive", type=Path)
    two.add_argument("out", type=Path)
    compiling = parts.add_parser("compile")  # what `prepare` runs with each Triton
    compiling.add_argument("folder", type=Path)
    args = parser.parse_args()
    {"prepare": prepare, "time": time_all, "compile": compile_here}[args.part](args)


# Here: compile


def prepare(args: argparse.Namespace) -> None:
    recording = read_recording(RECORDING)
    target = cuda_target(*divmod(args.arch, 10))
    kernels = moe_engine(find_engine(args.engine)).lift()
    wanted = {int(size) for size in filter(None, args.batch_sizes.split(","))}
    points = [p for p in recording.points if not wanted or p.batch_size in wanted]
    variants: dict[str, dict[str, Any]] = {}
    rows = []
    for point in points:
        for config in fastest(recording, point, args.best):
            place = recording.problem, gemm_of(point), point.batch_size
            bound = kernels.bind(*place, config, target)
            variant = bound.variant().as_json()
            name = hashlib.sha256(json.dumps(variant, sort_keys=True).encode()).hexdigest()[:16]
            variants[name] = variant
            rows.append(
                {
                    "batch_size": point.batch_size,
                    "gemm": point.part.value,
                    "config": dict(config),
                    "kernel": name,
                    "binding": binding_json(bound),
                }
            )
    old, new = installed_triton(), args.new
    plan = {
        "problem": recording.problem.spec(),
        "recording": RECORDING.name,
        "engine": args.engine,
        "arch": args.arch,
        "tritons": [old, new],
        "rows": rows,
        "variants": variants,
    }
    with tempfile.TemporaryDirectory() as folder:
        compile_with([TritonRelease(old), TritonRelease(new, find_triton(new))], plan, Path(folder))
        with zipfile.ZipFile(args.archive, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("plan.json", json.dumps(plan))
            archive.writestr("lifted.py", kernels.lifted.text)
            for path in sorted(Path(folder).glob("*/*.cubin")):
                archive.write(path, f"{path.parent.name}/{path.name}")
                meta = path.with_suffix(".json")
                archive.write(meta, f"{meta.parent.name}/{meta.name}")
    megabytes = args.archive.stat().st_size / 1e6
    print(f"{len(points)} points, {len(rows)} rows, {len(variants)} kernels, {megabytes:.1f} MB")


def fastest(recording: Recording, point: Point, count: int) -> list[Config]:
    timed = [
        (trial.measurement.median_us, candidate.config)
        for candidate, trial in recording.trials.items()
        if candidate.point == point and trial.measurement.median_us is not None
    ]
    return [config for _, config in sorted(timed)[:count]]


def compile_with(releases: Sequence[TritonRelease], plan: dict[str, Any], folder: Path) -> None:
    """Compile the plan's variants with each release, in one process for each."""
    lifted = moe_engine(find_engine(plan["engine"])).lift().lifted
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "lifted.py").write_text(lifted.text)
    processes = []
    for release in releases:
        out = folder / release.version
        out.mkdir()
        command = [sys.executable, __file__, "compile", str(out)]
        processes.append(subprocess.Popen(command, env=worker_env(folder / "cache", release)))
    for process in processes:
        assert process.wait() == 0


def compile_here(args: argparse.Namespace) -> None:
    """Compile all variants of the plan beside `args.folder` with the Triton of this process."""
    import triton  # noqa: PLC0415

    from tuner.compile.kernel import compile_kernel  # noqa: PLC0415

    folder: Path = args.folder
    assert triton.__version__ == folder.name
    plan = json.loads((folder.parent / "plan.json").read_text())
    target = cuda_target(*divmod(plan["arch"], 10))
    for name, variant in plan["variants"].items():
        kernel = compile_kernel(folder.parent / "lifted.py", variant, target)
        (folder / f"{name}.cubin").write_bytes(kernel.kernel)
        (folder / f"{name}.json").write_text(json.dumps(launch_facts(kernel.metadata)))


def launch_facts(metadata: Any) -> dict[str, Any]:  # noqa: ANN401 (Triton's own tuple)
    """What a launch needs to know. Refuses a kernel that needs more than a plain launch."""
    assert not metadata.launch_pdl and not metadata.launch_cooperative_grid
    assert metadata.num_ctas == 1
    assert metadata.global_scratch_size == metadata.profile_scratch_size == 0
    return {"name": metadata.name, "shared": metadata.shared, "num_warps": metadata.num_warps}


# What both ends know


def binding_json(bound: Binding) -> dict[str, Any]:
    return {
        "function": bound.function,
        "arguments": [
            [name, type(argument).__name__, vars(argument)]
            for name, argument in bound.arguments.items()
        ],
    }


def read_binding(fields: dict[str, Any]) -> Binding:
    kinds = {kind.__name__: kind for kind in bindings.Argument.__args__}
    arguments = {name: kinds[kind](**values) for name, kind, values in fields["arguments"]}
    names = tuple(Parameter(name) for name in arguments)
    return Binding(fields["function"], names, arguments, {})


def parameter_sizes(cubin: bytes) -> list[int]:
    """Bytes of each parameter of a cubin's kernel, in order (EIATTR_KPARAM_INFO)."""
    found = {}
    for section in sections(cubin, b".nv.info."):
        at = 0
        while at + 4 <= len(section):
            kind, attribute, size = struct.unpack_from("<BBH", section, at)
            if kind == 4 and attribute == 0x17:
                _, ordinal, _, word = struct.unpack_from("<IHHI", section, at + 4)
                found[ordinal] = word >> 18
            at += 4 + (size if kind == 4 else 0)
    return [found[ordinal] for ordinal in sorted(found)]


CTYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}


def c_arguments(signature: dict[str, str], values: Sequence[Any]) -> list[Any]:
    """A kernel's arguments as the driver takes them. `values`: one for each parameter."""
    packed: list[Any] = []
    for kind, value in zip(signature.values(), values, strict=True):
        if kind.startswith("*"):
            packed.append(ctypes.c_uint64(value.data_ptr()))
        elif kind != "constexpr":
            packed.append(CTYPES[kind](value))
    return [*packed, *(ctypes.c_uint64(0) for _ in range(SCRATCH))]


# There: load, check and time


@dataclass(frozen=True)
class DriverKernel:
    """A cubin, launched through the CUDA driver. It has the interface of `BoundKernel`."""

    function: ctypes.c_void_p
    facts: dict[str, Any]
    signature: dict[str, str]
    binding: Binding
    grid: tuple[int, ...]

    def launch(self, values: Sequence[Any], stream: int | None = None) -> None:
        import torch  # noqa: PLC0415

        packed = c_arguments(self.signature, values)
        places = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(one) for one in packed))
        stream = torch.cuda.current_stream().cuda_stream if stream is None else stream
        threads = 32 * self.facts["num_warps"]
        x, y, z = (*self.grid, 1, 1)[:3]
        shared = self.facts["shared"]
        launch = (self.function, x, y, z, threads, 1, 1, shared, ctypes.c_void_p(stream), places)
        call("cuLaunchKernel", *launch, None)


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:  # noqa: ANN401 (C types)
    code = getattr(driver(), name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: CUDA error {code}")


def load(cubin: bytes, facts: dict[str, Any]) -> ctypes.c_void_p:
    """Load a kernel as Triton's own loader does."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin)
    call("cuModuleGetFunction", ctypes.byref(function), module, facts["name"].encode())
    if facts["shared"] > 49_152:
        call("cuFuncSetCacheConfig", function, 1)  # prefer shared memory
        call("cuFuncSetAttribute", function, 8, facts["shared"])  # the most dynamic shared memory
    return function


class Archive:
    """What `prepare` wrote."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self.plan = json.loads(self._zip.read("plan.json"))
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}

    @property
    def target(self) -> Target:
        return cuda_target(*divmod(self.plan["arch"], 10))

    def cubin(self, triton: str, name: str) -> tuple[bytes, dict[str, Any]]:
        facts = json.loads(self._zip.read(f"{triton}/{name}.json"))
        return self._zip.read(f"{triton}/{name}.cubin"), facts

    def lifted(self) -> str:
        return self._zip.read("lifted.py").decode()

    def kernel(self, triton: str, row: dict[str, Any]) -> DriverKernel:
        from tuner.families.fused_moe.inputs import grid_size  # noqa: PLC0415  # imports torch

        name = row["kernel"]
        cubin, facts = self.cubin(triton, name)
        if (triton, name) not in self._functions:
            self._functions[triton, name] = load(cubin, facts)
        bound = read_binding(row["binding"])
        signature = self.plan["variants"][name]["signature"]
        grid = (grid_size(bound),)
        return DriverKernel(self._functions[triton, name], facts, signature, bound, grid)


def time_all(args: argparse.Namespace) -> None:
    import torch  # noqa: PLC0415
    import triton  # noqa: PLC0415

    from tuner.families.fused_moe.layer import Layer  # noqa: PLC0415

    archive = Archive(args.archive)
    plan = archive.plan
    assert torch.cuda.get_device_capability() == archive.target.capability
    assert triton.__version__ == plan["tritons"][0]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")  # makes the context that the driver's calls use
    problem = parse_problem(plan["problem"])
    properties = torch.cuda.get_device_properties(0)
    layer = Layer(problem, INPUT_SEED, properties.L2_cache_size)
    about = {name: plan[name] for name in ("problem", "recording", "engine", "arch", "tritons")}
    about |= {"device": properties.name, "torch": torch.__version__, "rounds": ROUNDS}
    started = time.perf_counter()
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "lifted_archived.py")
        source.write_text(archive.lifted())
        for point, rows in by_point(plan["rows"]):
            points.append(time_point(archive, layer, point, rows, source))
            out = {**about, "summary": summary(points), "points": points}
            args.out.write_text(json.dumps(out, indent=1) + "\n")
            print(f"{time.perf_counter() - started:6.1f} s  {point}", file=sys.stderr)
    print(json.dumps(summary(points), indent=1))


def by_point(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[Point, list[dict[str, Any]]]]:
    groups: dict[Point, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(Point(row["batch_size"], Gemm(row["gemm"])), []).append(row)
    yield from groups.items()


def time_point(
    archive: Archive,
    layer: Any,  # noqa: ANN401 (`Layer`, whose import needs torch)
    point: Point,
    rows: Sequence[dict[str, Any]],
    source: Path,
) -> dict[str, Any]:
    """Check and time all kernels of a point in turn."""
    from tuner.compile.kernel import compile_kernel  # noqa: PLC0415
    from tuner.families.fused_moe.layer import WORST_ERROR, check  # noqa: PLC0415
    from tuner.measure.timing import BoundKernel, capture, race  # noqa: PLC0415

    inputs = layer.inputs(point)
    old, new = archive.plan["tritons"]
    kernels: list[Any] = [archive.kernel(triton, row) for triton in (old, new) for row in rows]
    own = compile_kernel(source, archive.plan["variants"][rows[0]["kernel"]], archive.target)
    kernels.append(BoundKernel(own, kernels[0].binding, kernels[0].grid))
    graphs = []
    for kernel, row in zip(kernels, [*rows, *rows, rows[0]], strict=True):
        launches = inputs.launches(kernel, Config(row["config"]))
        error = check(inputs, kernel, launches)
        assert error <= WORST_ERROR[layer.problem.dtype], (row, error)
        graphs.append(capture(kernel, launches, least=len(launches)))
    times = [statistics.median(samples) for samples in race(graphs, ROUNDS)]
    count = len(rows)
    return {
        "batch_size": point.batch_size,
        "gemm": point.part.value,
        "triton_own_us": times[-1],
        "rows": [
            {"config": row["config"], "old_us": times[i], "new_us": times[count + i]}
            | figures(archive, row["kernel"])
            for i, row in enumerate(rows)
        ],
    }


def figures(archive: Archive, name: str) -> dict[str, Any]:
    """Shared bytes, registers and spilled bytes with the older and with the newer Triton."""
    found: dict[str, list[int]] = {"shared": [], "n_regs": [], "n_spills": []}
    for triton in archive.plan["tritons"]:
        cubin, facts = archive.cubin(triton, name)
        n_regs, n_spills = resources(cubin)
        found["shared"].append(facts["shared"])
        found["n_regs"].append(n_regs)
        found["n_spills"].append(n_spills)
    return found


def summary(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How often the best configuration changes, and by how much times differ."""
    ratios = sorted(row["new_us"] / row["old_us"] for point in points for row in point["rows"])
    kept = []  # the time of the older Triton's winner over the newer one's winner, with the newer
    for point in points:
        winner = min(point["rows"], key=lambda row: row["old_us"])
        kept.append(winner["new_us"] / min(row["new_us"] for row in point["rows"]))
    best = [
        min(row["new_us"] for row in point["rows"]) / min(row["old_us"] for row in point["rows"])
        for point in points
    ]
    return {
        "points": len(points),
        "configurations": len(ratios),
        "other_best": sum(cost > 1 for cost in kept),
        "other_best_beyond_noise": sum(cost > 1 + NOISE for cost in kept),
        "cost_of_keeping_the_old_best": {
            "geomean": statistics.geometric_mean(kept),
            "max": max(kept),
        },
        "best_new_over_best_old": {
            "geomean": statistics.geometric_mean(best),
            "min": min(best),
            "max": max(best),
        },
        "new_over_old": {
            "geomean": statistics.geometric_mean(ratios),
            "min": ratios[0],
            "median": statistics.median(ratios),
            "max": ratios[-1],
        },
        "own_launcher_over_driver": [p["triton_own_us"] / p["rows"][0]["old_us"] for p in points],
    }


if __name__ == "__main__":
    main()
