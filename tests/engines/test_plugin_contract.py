"""The contract of the plugins, in processes of every release that loads plugins.

Whatever the folder of files holds and whatever the release is: no exception, no constants on a
launch that they were not measured for, one line of log for what is refused, and a start that lifts
kernels and opens files once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_cases import attention_file, gemm_file, put
from schedulers import installed
from tiers import only

from tuner.bindings.sglang.plugin.files import AttentionEntry
from tuner.engines.engine import find_engine, kernel_hash
from tuner.families.attention.problem import AttentionPart
from tuner.families.scans.chunk_scan.problem import SsdKernel
from tuner.families.scans.files import ScanEntry, ScanFile
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

HERE = Path(__file__).parent
RELEASES = only(
    ("sglang 0.5.23", "vllm 0.33.0"),
    (
        *("sglang 0.5.12", "sglang 0.5.16", "sglang 0.5.23"),
        *("vllm 0.10.2", "vllm 0.15.1", "vllm 0.24.0", "vllm 0.33.0"),
    ),
)
MANY = 100
LIFTS = 5  # attention's three files, GEMM's and a scan's
ALIKE, LONGER = "Lq=32,Lv=32", "Lq=48,Lv=32"  # two models with the same heads
TILE = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 2, "num_stages": 3}
STAGE_1 = {"BLOCK_N": 16, "num_warps": 2, "num_stages": 3, "BLOCK_H": 2}
GEMM = {
    **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1},
    **{"num_warps": 2, "num_stages": 4},
}
SCAN = {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 2, "num_stages": 1}
# case -> (kernel, constants) with files of both models
TUNED = {
    "extend": [TILE],
    "extend longer keys": [{**TILE, "num_stages": 2}],
    "decode": [STAGE_1, {"num_warps": 2}],
    "decode longer keys": [{**STAGE_1, "num_stages": 2}, {"num_warps": 1}],
    "prefill": [TILE],
    "gemm": [{name: value for name, value in GEMM.items() if name != "GROUP_SIZE_M"}],
    "scan": [SCAN] * 3,
    "scan second": [{**SCAN, "num_stages": 2}] * 3,
}
SECOND = tuple(name for name in TUNED if "longer" in name or "second" in name)
# What the next release calls its kernels, by the end of a file's name.
RENAMED = {
    "decode_attention.py": "_fwd_kernel_stage2",
    "fp8_kernel.py": "_w8a8_block_fp8_matmul",
    "ssd_bmm.py": "_bmm_chunk_fwd_kernel",
}


def attention_files(columns: str, stages: int, warps: int, **made: str) -> Iterator[object]:
    shape = f"q_heads=4,kv_heads=2,{columns},dtype=float16"
    tile = Config({**TILE, "num_stages": stages})
    extend = AttentionEntry(AttentionPart.EXTEND, 2, 16, tile, Status.OK)
    yield attention_file(parse_problem(f"extend_attention:{shape}"), [extend], **made)
    stage_1 = Config({**STAGE_1, "num_stages": stages})
    decode = [
        AttentionEntry(AttentionPart.DECODE, 2, 1, stage_1, Status.OK),
        AttentionEntry(AttentionPart.REDUCE, 2, 1, Config({"num_warps": warps}), Status.OK),
    ]
    yield attention_file(parse_problem(f"decode_attention:{shape},kv_splits=8"), decode, **made)
    if columns == ALIKE:
        prefill = AttentionEntry(AttentionPart.PREFILL, 2, 32, tile, Status.OK)
        yield attention_file(parse_problem(f"prefill_attention:{shape}"), [prefill], **made)


def scan_file(heads: int, stages: int, **made: str) -> ScanFile:
    sizes = f"heads={heads},head_dim=64,groups={heads // 8},state_size=128,chunk_size=128"
    entry = ScanEntry(
        Point(1, SsdKernel.SCAN, 1024), Config({**SCAN, "num_stages": stages}), Status.OK
    )
    about = {"device": "NVIDIA_H200", "triton": "3.6.0", **made}
    return ScanFile(parse_problem(f"chunk_scan:{sizes}"), **about, entries=(entry,))


class Release:
    """One release, and the files that fit it."""

    def __init__(self, text: str) -> None:
        self.name, self.version = text.split()
        self.engine = find_engine(f"{self.name}=={self.version}")
        self.made = {"engine": self.name, "engine_version": self.version}

    def about(self, family: str) -> dict[str, str]:
        return {**self.made, "kernel_hash": kernel_hash(self.engine, family)}

    def files(self, *, first: bool = True) -> list[object]:
        """The files of the second model, and of the first one."""
        found: list[object] = [scan_file(32, 2, **self.about("chunk_scan"))]
        if first:
            found.append(scan_file(64, 1, **self.about("chunk_scan")))
        if self.name == "sglang":
            attention = self.about("attention")
            found += attention_files(LONGER, 2, 1, **attention)
            if first:
                found += attention_files(ALIKE, 3, 2, **attention)
                found.append(self.gemm(256, **self.about("dense_gemm")))
        return found

    def gemm(self, columns: int, **made: str) -> object:
        problem = parse_problem(f"block_gemm:N={columns},K=256,dtype=fp8_w8a8,block=128x128")
        return gemm_file(problem, {1: Config(GEMM)}, **made)

    def many(self, **made: str) -> list[object]:
        """Files that look as if they were for this model, and are not."""
        found: list[object] = []
        for number in range(MANY):
            other = {"kernel_hash": "0" * 64, **self.made, **made}
            if "device" in made:
                other["device"] = f"NVIDIA_CARD_{number}"
            scan = scan_file(64 if "device" in made else 8 * (number + 1), 1, **other)
            found.append(scan)
            if self.name == "sglang":
                columns = "Lq=32,Lv=32" if "device" in made else f"Lq={8 * number + 8},Lv=32"
                found.append(next(attention_files(columns, 3, 2, **other)))
                found.append(self.gemm(256 if "device" in made else 128 * (number + 1), **other))
        return found

    def renamed(self, folder: Path) -> Path:
        """A copy of the package, of links, in which a kernel of each family has another name."""
        package = folder / self.name
        mirrored(self.engine.root, package)
        for path in sorted(self.engine.root.rglob("*.py")):
            name = RENAMED.get(path.name)
            if name is None or f"def {name}(" not in (text := path.read_text()):
                continue
            at = package
            for part in path.relative_to(self.engine.root).parts[:-1]:
                at = at / part
                if at.is_symlink():
                    whole = at.resolve()
                    at.unlink()
                    mirrored(whole, at)
            copy = package / path.relative_to(self.engine.root)
            copy.unlink()
            copy.write_text(text.replace(name, f"{name}_next"))
        return package


def mirrored(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)


@pytest.fixture(scope="module", params=RELEASES)
def release(request):
    return Release(request.param)


@pytest.fixture(scope="module")
def reports(release, tmp_path_factory):
    """What a process of each scenario did."""
    folder = tmp_path_factory.mktemp("contract")
    files = {
        "none": [],
        "fitting": release.files(),
        "other shapes": release.files(first=False),
        "renamed": release.files(),
        "many": release.many(),
        "other cards": release.many(device="NVIDIA_L40S"),
        "deterministic": release.files(),
    }
    scenarios = {}
    for name, written in files.items():
        root = folder / name
        for file in written:
            put(root, file)
        package = release.renamed(folder / "next") if name == "renamed" else release.engine.root
        scenarios[name] = {
            **{"package": str(package), "root": str(root)},
            "deterministic": name == "deterministic",
        }
    places = installed(folder), HERE, HERE.parent
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("TUNER_", "TRITON_INT"))}
    environ |= {"PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"}
    if release.name == "vllm":
        environ["VLLM_BATCH_INVARIANT"] = "0"
    program = [sys.executable, HERE / "contract_scheduler.py", release.name, release.version]
    words = [str(folder), json.dumps(scenarios)]
    done = subprocess.run(  # noqa: S603
        [*map(str, program), *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in files}
    for name, report in found.items():
        assert "error" not in report, f"{name}: {report['error']}"
        report["files"] = len(files[name])
    return found


def unnamed(launches: object) -> object:
    """Launches without the kernels' names."""
    return json.loads(json.dumps(launches).replace("_next", ""))


def test_without_files_nothing_is_read_lifted_or_said(reports):
    none = reports["none"]
    assert none["launches"]
    assert (none["lifts"], none["opened"], none["lines"]) == (0, 0, [])


def test_two_models_in_a_process_have_their_own_constants_and_nothing_else_has_any(reports):
    own, ours = reports["none"]["launches"], reports["fitting"]["launches"]
    assert ours.keys() == own.keys()
    for case, launches in ours.items():
        if case not in TUNED:
            assert launches == own[case], case
            continue
        for launch, constants in zip(launches, TUNED[case], strict=True):
            assert launch.items() >= constants.items(), case


def test_launches_of_other_shapes_stay_the_engines(reports):
    own, ours = reports["none"]["launches"], reports["other shapes"]["launches"]
    different = {case for case in own if ours[case] != own[case]}
    assert different == {case for case in SECOND if case in own}


@pytest.mark.parametrize("scenario", ["renamed", "many", "other cards"])
def test_files_that_are_not_for_this_server_change_nothing(scenario, reports):
    own, ours = reports["none"], reports[scenario]
    assert unnamed(ours["launches"]) == own["launches"]
    told = [line for line in ours["lines"] if "refused" in line]
    families = {line.partition(":")[0] for line in told}
    assert families == {line.partition(":")[0] for line in reports["fitting"]["lines"]}
    assert len(told) == len(families)  # one line each
    assert all(len(line) < 6000 for line in told)
    assert not [line for line in ours["lines"] if "nothing is applied" in line]


def test_deterministic_inference_has_no_choice_by_size(release, reports):
    if release.name == "sglang":
        assert reports["deterministic"]["launches"] == reports["none"]["launches"]
        assert "inference is deterministic" in "".join(reports["deterministic"]["lines"])


@pytest.mark.parametrize("scenario", ["fitting", "other shapes", "renamed", "many", "other cards"])
def test_a_start_lifts_the_kernels_and_opens_the_files_once(scenario, reports):
    ours = reports[scenario]
    assert ours["lifts"] <= (0 if scenario == "other cards" else LIFTS)
    assert ours["opened"] <= ours["files"]
