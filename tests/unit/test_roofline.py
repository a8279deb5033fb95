"""No measured time is below the roofline, and the roofline says what its formula says."""

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tuner.devices.table import find_device
from tuner.families.attention.problem import AttentionPart
from tuner.families.dense_gemm.problem import DensePart as Dense
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import Point, Problem
from tuner.problems.registry import family_of, parse_problem, read_part

ROOT = Path(__file__).parents[2]
H200 = find_device("H200")
Timed = tuple[str, Problem, Point, float]  # device, and the time in microseconds

RECORDINGS = [
    *sorted((ROOT / "tests/data/recordings").glob("*.csv.gz")),
    ROOT / "benchmarks/results/h200/r1.csv.gz",
    ROOT / "benchmarks/results/h200/h200_attention_sweep.csv.gz",
]
REPORTS = sorted(
    path
    for path in (ROOT / "benchmarks/results").rglob("*.json*")
    if path.parent.name in ("h100", "h200", "vllm")
)


problem_of = cache(parse_problem)


def recorded(path: Path) -> Iterator[Timed]:
    device = "H100" if "h100" in path.name else "H200"
    for row in csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())):
        if not row["median_us"]:
            continue
        if "problem" in row:
            tokens = (int(row["new_tokens"]), int(row["cached_tokens"]))
            point = Point(int(row["batch_size"]), read_part(row["part"]), *tokens)
            yield device, problem_of(row["problem"]), point, float(row["median_us"])
        else:
            point = Point(int(row["M"]), Gemm(row["gemm"]))
            yield device, _layer(row), point, float(row["median_us"])


def _layer(row: dict[str, str]) -> FusedMoe:
    block = [int(n) for n in row["block"].split(",") if n]
    return FusedMoe(
        *(int(row[name]) for name in ("E", "N", "K", "topk")),
        dtype=parse_dtype(row["dtype"]),
        block_shape=(block[0], block[1]) if block else None,
        per_channel_quant=row.get("per_channel_quant") == "true",
    )


def reported(path: Path) -> Iterator[Timed]:
    text = path.read_text()
    for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
        yield from _found(json.loads(line), "H200" if "h200" in str(path) else "H100", None)


def _found(value: Any, device: str, problem: str | None) -> Iterator[Timed]:
    """The launches in a report: in `median_us`, `us` or `gemms` beside a size and a part."""
    if isinstance(value, dict):
        problem = str(value.get("problem") or problem or "")
        yield from _launches(value, device, problem)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _found(one, device, problem)


def _launches(value: dict[str, Any], device: str, problem: str) -> Iterator[Timed]:
    size = value.get("batch_size") or value.get("M")
    for times in value.get("gemms", {}).values() if size else ():
        for gemm, time in zip(Gemm, times, strict=True):
            yield device, parse_problem(problem), Point(size, gemm), time
    part = value.get("gemm") or value.get("part")
    if part is None and problem.startswith("block_gemm:"):
        part = Dense.DENSE.value
    if size and part:
        tokens = (value.get("new_tokens") or 0, value.get("cached_tokens") or 0)
        point = Point(size, read_part(part), *tokens)
        for time in (value.get("median_us"), *value.get("us", {}).values()):
            if time is not None:
                yield device, parse_problem(problem), point, time


def least_us(problem: Problem, point: Point, device: str = "H200") -> float:
    return family_of(problem).least_us(problem, point, find_device(device))


class TestMeasuredTimes:
    @pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
    def test_no_recorded_time_is_below_it(self, path):
        assert _launches_below(recorded(path)) == []

    def test_no_reported_time_is_below_it(self):
        seen: dict[str, int] = defaultdict(int)
        for path in REPORTS:
            if "beside" in path.name:  # other libraries' kernels, also in other dtypes
                continue
            times = list(reported(path))
            seen[str(path.relative_to(ROOT / "benchmarks/results"))] = len(times)
            assert _launches_below(times) == [], path
        assert len([name for name, count in seen.items() if count]) > 15, seen

    def test_the_best_kernels_come_close_to_it(self):
        """A bound that nothing comes near would say little."""
        path = ROOT / "benchmarks/results/h200/r1.csv.gz"
        assert max(least_us(p, at, card) / time for card, p, at, time in recorded(path)) > 0.9


def _launches_below(times: Iterator[Timed] | list[Timed]) -> list[str]:
    fastest: dict[tuple[str, Problem, Point], float] = {}
    for device, problem, point, time in times:
        key = (device, problem, point)
        fastest[key] = min(time, fastest.get(key, time))
    return [
        f"{problem.spec()} {point}: {time} us"
        for (device, problem, point), time in fastest.items()
        if time < least_us(problem, point, device)
    ]


class TestFusedMoe:
    LAYER = FusedMoe(256, 256, 7168, 8, Dtype.BFLOAT16)

    def test_one_token_reads_the_weights_of_its_experts(self):
        weights = 8 * 512 * 7168 * 2
        found = least_us(self.LAYER, Point(1, Gemm.UP))
        assert found == pytest.approx(weights / H200.bandwidth_gbs / 1e3)

    def test_many_tokens_read_all_experts_once(self):
        weights = 256 * 512 * 7168 * 2
        found = least_us(self.LAYER, Point(512, Gemm.UP))
        assert found == pytest.approx(weights / H200.bandwidth_gbs / 1e3, rel=1e-3)

    def test_operations_count_where_they_take_longer(self):
        tokens = 65536
        operations = 2 * tokens * 8 * 512 * 7168
        found = least_us(self.LAYER, Point(tokens, Gemm.UP))
        assert found == pytest.approx(operations / H200.fp16_tflops / 1e6)

    def test_fp8_without_tensor_cores_for_it_has_the_rate_of_fp16(self):
        layer = FusedMoe(8, 2048, 4096, 2, Dtype.FP8_W8A8)
        a100 = find_device("A100-SXM4-80GB")
        assert a100.fp8_tflops is None
        operations = 2 * 65536 * 2 * 4096 * 4096
        found = least_us(layer, Point(65536, Gemm.UP), "A100-SXM4-80GB")
        assert found == pytest.approx(operations / a100.fp16_tflops / 1e6)


class TestAttention:
    HEADS = "q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16"

    def test_decode_reads_the_cache(self):
        problem = parse_problem(f"decode_attention:{self.HEADS}")
        cache = 32768 * 8 * (128 + 128) * 2
        found = least_us(problem, Point(1, AttentionPart.DECODE, 1, 32768))
        assert found == pytest.approx(cache / H200.bandwidth_gbs / 1e3)

    def test_latent_decode_reads_a_row_once(self):
        problem = parse_problem("decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bf16")
        found = least_us(problem, Point(1, AttentionPart.DECODE, 1, 65536))
        assert found == pytest.approx(65536 * 576 * 2 / H200.bandwidth_gbs / 1e3)

    @pytest.mark.parametrize("cached", [0, 50, 5000])
    @pytest.mark.parametrize("window", [0, 1, 100, 5000])
    def test_extend_counts_the_pairs_that_a_query_sees(self, cached, window):
        new = 3000
        text = f"extend_attention:{self.HEADS}" + (f",window={window}" if window else "")
        problem = parse_problem(text)
        kept = min(cached, window) if window else cached
        pairs = sum(min(kept + i + 1, window + 1 if window else 1 << 30) for i in range(new))
        operations = 2 * pairs * 32 * 256
        memory = kept * 8 * 256 * 2
        expected = max(operations / H200.fp16_tflops / 1e6, memory / H200.bandwidth_gbs / 1e3)
        found = least_us(problem, Point(1, AttentionPart.EXTEND, new, cached))
        assert found == pytest.approx(expected)
