"""Examples of jobs, a step and errors, as a service gave them, for the OpenAPI document."""

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

# By the name of the schema.
ANSWERS: dict[str, Any] = {"SubmittedOut": _SUBMITTED, "JobOut": _DONE}

EVENT = {
    "id": "25",
    "event": "done",
    "data": '{"seq": 25, "kind": "done", "at": "2026-11-21T20:49:45.412321Z", '
    '"data": {"run_id": 1}}',
}

# An example of an error with that status: its type, a URN or about:blank, and its detail.
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
