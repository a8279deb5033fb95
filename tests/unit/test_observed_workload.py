"""Logs and benchmarks name the batches that a server really runs."""

import pytest

from tuner.engines.logs.workload import (
    Phase,
    WeightedBatch,
    batches_of_load,
    batches_of_log,
    points,
    sizes,
)

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
SGLANG = [
    "[2026-11-21 10:00:00 TP0] Prefill batch, #new-seq: 2, #new-token: 1000, #cached-token: 8192, "
    "token usage: 0.00, #running-req: 0, #queue-req: 0, cuda graph: False",
    "[2026-11-21 10:00:02 TP0] Decode batch, #running-req: 8, #token: 32768, token usage: 0.10, "
    "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0,",
    "[2026-11-21 10:00:04 TP0] Decode batch, #running-req: 8, #token: 33000, token usage: 0.10, "
    "cuda graph: True, gen throughput (token/s): 400.00, #queue-req: 0,",
    "[2026-11-21 10:00:06 TP0] Decode batch. #running-req: 60, #token: 61440, token usage: 0.40, "
    "gen throughput (token/s): 2000.00, #queue-req: 0,",
]
VLLM = [
    "INFO GPU KV cache size: 100,000 tokens",
    "INFO Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 250.0 "
    "tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 16.4%, Prefix cache hit",
    "INFO Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 "
    "tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%",
]


def test_a_log_of_sglang_weighs_batches_by_their_time():
    found = batches_of_log(SGLANG)
    assert [(b.phase, b.sequences, b.new_tokens, b.cached_tokens) for b in found] == [
        (Phase.PREFILL, 2, 500, 4096),
        (Phase.DECODE, 8, 1, 4096),
        (Phase.DECODE, 8, 1, 4125),
        (Phase.DECODE, 60, 1, 1024),
    ]
    # A decode line stands for a fixed number of steps: 8/400 + 8/400 against 60/2000 of a second.
    assert [b.weight for b in found] == pytest.approx([1, 2 / 7, 2 / 7, 3 / 7])


@pytest.mark.parametrize("idle", [1, 64, 65])
def test_a_line_after_an_idle_hour_has_the_time_of_its_steps(idle):
    line = "Decode batch. #running-req: {}, #token: 9999, gen throughput (token/s): {}, #queue-"
    found = batches_of_log([line.format(idle, idle / 3600)] + [line.format(64, 2500.0)] * 2000)
    assert found[0].sequences == idle
    assert found[0].weight == pytest.approx(1 / 2001, rel=0.02)
    assert sizes(found, LADDER) == [64]


def test_a_step_with_more_requests_is_no_shorter():
    line = "Decode batch. #running-req: {}, #token: 9999, gen throughput (token/s): {}, #queue-"
    found = batches_of_log([line.format(n, speed) for n, speed in [(1, 50), (4, 40), (8, 200)]])
    # Steps of 20, 100 and 40 ms: the 100 ms of 4 requests were no longer than the 40 ms of 8.
    assert [b.weight for b in found] == pytest.approx([0.2, 0.4, 0.4])


def test_a_log_of_vllm_tells_lengths_by_the_cache_in_use():
    assert batches_of_log(VLLM) == [WeightedBatch(Phase.DECODE, 4, 1, 4100, 1.0)]
    assert batches_of_log(VLLM[1:]) == [WeightedBatch(Phase.DECODE, 4, 1, None, 1.0)]


def test_a_benchmark_tells_batches_by_its_load():
    assert batches_of_load(16, 1000, 200) == [
        WeightedBatch(Phase.DECODE, 16, 1, 1100, 1.0),
        WeightedBatch(Phase.PREFILL, 1, 1000, 0, 1.0),
    ]


def test_sizes_are_those_that_engines_look_up():
    assert sizes(batches_of_log(SGLANG), LADDER) == [8, 64, 1024]


def test_rare_batches_are_left_out():
    rare = WeightedBatch(Phase.DECODE, 500, 1, 64, 0.004)
    often = WeightedBatch(Phase.DECODE, 4, 1, 64, 0.996)
    assert sizes([rare, often], LADDER) == [4]
    assert [b.sequences for b in points([rare, often])] == [4]


def test_points_are_few_and_by_powers_of_two():
    assert points(batches_of_log(SGLANG)) == [
        WeightedBatch(Phase.PREFILL, 2, 512, 4096, 1.0),
        WeightedBatch(Phase.DECODE, 8, 1, 4096, 0.571),
        WeightedBatch(Phase.DECODE, 64, 1, 1024, 0.429),
    ]
    many = [WeightedBatch(Phase.DECODE, 1, 1, 1 << n, 1 / 20) for n in range(20)]
    assert len(points(many)) == 12


def test_lines_without_batches_are_none():
    broken = [
        "Decode batch. #running-req: 0, #token: 0, gen throughput (token/s): 3.0",
        "Decode batch. #running-req: 8, #token: 9, gen throughput (token/s): 1.2.3",
        "Prefill batch. #new-seq: 0, #new-token: 0, #cached-token: 0",
        "hello",
    ]
    assert batches_of_log(broken) == []
