"""Examples of answers, as a service with one job gave them. The OpenAPI document shows them."""

from __future__ import annotations

from typing import Any

JOB_ID = "01m7zxyabmd03vy993merh4bez"
EXAMPLE_PROBLEM = "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant"
_POSTED, _ENDED = "2026-11-21T20:49:37.652249Z", "2026-11-21T20:49:45.412321Z"
_QUEUED: dict[str, Any] = {
    "id": JOB_ID,
    "state": "queued",
    "priority": "normal",
    "request": {
        "problem": EXAMPLE_PROBLEM,
        "device": "NVIDIA_L40S",
        "engine": "sglang==0.5.16",
        "measure": "predict",
        "effort": "standard",
        "wide": None,
        "seed": 0,
        "model": "deepseek-r1",
        "batch_sizes": [1, 64],
        "gemms": ["up", "down"],
    },
    "client": "ci",
    "clients": ["ci"],
    "attempts": 0,
    "cancel_requested": False,
    "run_id": None,
    "error": "",
    "cost": None,
    "created_at": _POSTED,
    "updated_at": _POSTED,
    "started_at": None,
    "finished_at": None,
}
_DONE = {
    **_QUEUED,
    **{"state": "done", "attempts": 1, "run_id": 1, "updated_at": _ENDED, "finished_at": _ENDED},
    "started_at": "2026-11-21T20:49:37.701822Z",
    "cost": {"gpu_s": 41.3, "gpu_idle_s": 16.5, "cpu_s": 158.2},
}
_ENVIRONMENT = {
    "device": "NVIDIA_L40S",
    "engine": "sglang",
    "engine_version": "0.5.16",
    "triton": "3.6.0",
    "kernel_hash": "7f9c6dcaac68cafad518152d34c781a13290f17d2906d85264cd2bca33f3d9f5",
    "torch": "",
    "cuda": "",
    "driver": "",
}
_WINNER = {
    "gemm": "up",
    "batch_size": 1,
    "config": {
        **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 64},
        **{"num_warps": 4, "num_stages": 5},
    },
    "status": "predicted",
    "median_us": 16.1098738317185,
    "shared_bytes": 49152,
    "n_regs": 64,
    "n_spills": 0,
    "incumbents": {
        "default": {
            "backend": "triton",
            "config": {
                **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64},
                **{"GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3},
            },
            "status": "predicted",
            "median_us": 52.96059635655606,
        }
    },
    "without_us": "default",
    "least_us": 9.557333333333334,
    "reason": "predicted 2.572x as fast as the default configuration",
    "run_id": 1,
    "published_at": "2026-11-21T20:49:45.388817Z",
}
_SERVED_PROOF = {
    **{"id": 1, "model": "Qwen/Qwen3-30B-A3B", "device": "NVIDIA_L40S"},
    **{"engine": "sglang", "engine_version": "0.5.16", "proven": True},
    "files": "0e5b6b8c6ec6c30c5cbb5c8e4e2c5ba5d9be1b1ad2ea7a1d8e4ec3a1d3a4c9f1",
    "report": {"format": 1, "proven": True, "gains": []},
    "created_at": _ENDED,
}
_TRIAL = {
    "gemm": "down",
    "batch_size": 1,
    "backend": "triton",
    "config": {
        **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32},
        **{"num_warps": 4, "num_stages": 2},
    },
    "status": "predicted",
    "median_us": 8.266265027116521,
    "shared_bytes": 10240,
    "n_regs": 64,
    "n_spills": 0,
    "min_us": None,
    "samples": 0,
    "compile_status": "ok",
    "detail": "8.2 us by the device model alone",
}
_WATCH = {
    "id": 1,
    "watch": {
        "models": ["deepseek-r1"],
        "devices": ["NVIDIA_L40S"],
        "tp": [16, 32],
        "ep": [1],
        "dtypes": ["int8_w8a8"],
        "batch_sizes": [],
        "engine": "sglang",
        "measure": "gpu",
        "effort": "standard",
    },
    "client": "admin",
    "created_at": "2026-11-21T20:49:37.765401Z",
}

_KEY = {
    "name": "ci",
    "scopes": ["submit", "urgent"],
    "state": "valid",
    "created_at": _POSTED,
    "last_used_at": _ENDED,
    "expires_at": None,
    "revoked_at": None,
}
_SUBMITTED = {
    **_QUEUED,
    "created": True,
    "estimated_gpu_s": 40.3,
    "notes": [
        "E=256+1: sglang 0.5.16 fuses the shared experts of DeepseekV3ForCausalLM on sm_89 "
        "(override with fuse_shared=false)"
    ],
    "waiting": "",
}
_WORKER = {
    "id": "NVIDIA_L40S-0@gpu-host-3:18558:679a41",
    "name": "NVIDIA_L40S-0@gpu-host-3",
    "host": "gpu-host-3",
    "gpu": "GPU-5c1d6b0e-3c0e-4b5a-9f0e-0f3a1c2d4e5f",
    "device": "NVIDIA_L40S",
    "devices": None,
    "engines": ["sglang==0.5.16"],
    "packages": {"engine-tuner": "0.1.0", "triton": "3.6.0", "torch": "2.11.0"},
    "state": "idle",
    "reason": "",
    "job_id": None,
    "started_at": _POSTED,
    "seen_at": _ENDED,
}
_NIGHT = {
    "schedule": "nightly",
    "date": "2026-11-21",
    "summary": None,
    "started_at": "2026-11-21T01:00:00.104315Z",
    "finished_at": None,
}
_REFUSED = {
    "type": "urn:engine-tuner:error:unknown-model",
    "title": "Unprocessable Entity",
    "status": 422,
    "detail": "no preset is called 'deepseek-r11'; did you mean 'deepseek-r1'?",
    "request_id": "2ccf662ab06a1f80",
}

# By the name of the schema.
ANSWERS: dict[str, Any] = {
    "SubmittedOut": _SUBMITTED,
    "BatchOut": {
        "jobs": [{"job": _SUBMITTED, "problem": None}, {"job": None, "problem": _REFUSED}]
    },
    "WorkersOut": {"workers": [_WORKER]},
    "JobOut": _DONE,
    "JobsOut": {"jobs": [_DONE], "next": None},
    "WinnersOut": {"problem": EXAMPLE_PROBLEM, "environment": _ENVIRONMENT, "winners": [_WINNER]},
    "TrialsOut": {"trials": [_TRIAL], "next": "WyJkb3duIiwgMSwgMCwgMCwgIkJMT0NLX1NJWkVfSz0xMjgiXQ"},
    "HeldPageOut": {
        "stored": [
            {
                "device": "NVIDIA_L40S",
                "problem": EXAMPLE_PROBLEM,
                "environment": _ENVIRONMENT,
                "standing": "tuned",
                "why": "",
                "points": {"incumbent": 32, "predicted": 4},
                "speedup": 1.87,
                "over": "what runs without us",
                "oldest": "2026-11-21T20:49:45.388817Z",
                "newest": "2026-11-21T20:49:45.388817Z",
            }
        ],
        "next": None,
    },
    "MatrixOut": {
        "devices": ["NVIDIA_L40S"],
        "counts": {"measured": 0, "predicted": 1, "stale": 0, "untuned": 0, "missing": 0},
        "total": 1,
        "rows": [
            {
                "problem": EXAMPLE_PROBLEM,
                "engine": "sglang",
                "family": "fused_moe",
                "models": ["deepseek-r1 int8_w8a8 TP 32", "deepseek-v3 int8_w8a8 TP 32"],
                "cells": [
                    {
                        "device": "NVIDIA_L40S",
                        "state": "predicted",
                        "why": "",
                        "speedup": 1.87,
                        "over": "what runs without us",
                        "points": {"incumbent": 32, "predicted": 4},
                        "engine_version": "0.5.16",
                        "newest": "2026-11-21T20:49:45.388817Z",
                    }
                ],
            }
        ],
        "next": None,
    },
    "ResultsOut": {
        "problem": EXAMPLE_PROBLEM,
        "family": "fused_moe",
        "models": ["deepseek-r1 int8_w8a8 TP 32", "deepseek-v3 int8_w8a8 TP 32"],
        "device": "NVIDIA_L40S",
        "engine": "sglang",
        "environments": [
            {
                "environment": _ENVIRONMENT,
                "standing": "tuned",
                "why": "",
                "winners": [_WINNER],
                "current": True,
            }
        ],
    },
    "ProgressOut": {
        "trials": {"ok": 212, "out_of_resources": 9},
        "best": [{"gemm": "up", "batch_size": 1, "point": "M=1 up", "best_us": 16.1}],
        "incumbents": [
            {
                "gemm": "up",
                "batch_size": 1,
                "point": "M=1 up",
                "times_us": {"default": 52.96, "shipped": None},
            }
        ],
        "to_try": 512,
        "left_s": 96.5,
        "tried_a_minute": 181.0,
        "timed_a_minute": 173.6,
    },
    "KeysOut": {"keys": [_KEY]},
    "NewKeyOut": {**_KEY, "last_used_at": None, "key": "tuner_2ZlnL5AVSVQf5BRB3Kx8mYtJ0aC1dEwq"},
    "WatchedPageOut": {
        "watched": [
            {
                "model": "deepseek-r1",
                "problem": EXAMPLE_PROBLEM,
                "device": "NVIDIA_L40S",
                "engine": "sglang",
                "measure": "gpu",
                "standing": "missing",
                "why": "36 of 36 points have no result",
                "tuned_at": None,
                "watch_id": 1,
            }
        ],
        "next": "WzFd",
    },
    "WatchOut": _WATCH,
    "WatchesOut": {"watches": [_WATCH]},
    "SummaryOut": {
        "schedule": "nightly",
        "date": "2026-11-21",
        "skipped": "it was done at 01:00 UTC; force it to do it again",
    },
    "NightOut": _NIGHT,
    "NightsOut": {"nights": [_NIGHT], "next": None},
    "ServedProofOut": _SERVED_PROOF,
    "ServedProofsOut": {"proofs": [_SERVED_PROOF], "next": None},
    "DevicesOut": {
        "devices": [
            {
                "name": "NVIDIA_L40S",
                "aliases": ["L40S"],
                "arch": 89,
                "sm_count": 142,
                "memory_bytes": 51539607552,
                "bandwidth_gbs": 864.0,
                "shared_optin_bytes": 101376,
            }
        ]
    },
    "ModelsOut": {
        "models": [
            {
                "name": "deepseek-r1",
                "aliases": ["deepseek-r1-0528"],
                "architecture": "DeepseekV3ForCausalLM",
                "E": 256,
                "intermediate": 2048,
                "hidden": 7168,
                "top_k": 8,
                "n_shared_experts": 1,
                "quantization": "fp8",
                "dtype": "fp8_w8a8",
                "families": ["fused_moe", "attention"],
            }
        ]
    },
    "StatusOut": {"status": "ok"},
}

EVENT = {
    "id": "25",
    "event": "done",
    "data": '{"seq": 25, "kind": "done", "at": "2026-11-21T20:49:45.412321Z", '
    '"data": {"run_id": 1}}',
}

# What an error with that status may say: its type, which is a urn or about:blank, and its detail.
PROBLEMS: dict[int, tuple[str, str]] = {
    400: ("about:blank", "the body is not JSON: Expecting value: line 1 column 1 (char 0)"),
    401: ("about:blank", "send a key: Authorization: Bearer KEY"),
    403: ("about:blank", "this needs a key of scope submit, and yours is of read"),
    404: ("urn:engine-tuner:error:unknown-job", "there is no job '00000000000000000000000000'"),
    409: (
        "urn:engine-tuner:error:idempotency-key-in-use",
        "Another request with this idempotency key is being worked on: try again in a moment.",
    ),
    413: ("about:blank", "a body has at most 4194304 bytes"),
    415: ("about:blank", "send JSON, as Content-Type: application/json"),
    422: ("urn:engine-tuner:error:invalid-request", "tpp: unknown field; did you mean 'tp'?"),
    429: ("about:blank", "more than 1200 per 1 minute"),
    500: ("about:blank", "the tuner failed"),
    503: (
        "urn:engine-tuner:error:unusable-store",
        "the store does not answer: try again",
    ),
}
