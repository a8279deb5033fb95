"""Types of text in requests, with their bounds, for schemas and for handlers."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, Field, WithJsonSchema

from tuner.engines.engine import parse_spec
from tuner.errors import BadInput
from tuner.tuning.request import parse_source

_RECORDING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# No NUL, which PostgreSQL cannot hold, no line breaks, and nothing that changes what a terminal
# shows: control characters and marks of the direction of text.
PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
DeviceName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=60,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 _-]*$",
        description="A GPU of GET /v1/devices, by any of its names.",
        examples=["L40S", "NVIDIA_H200"],
    ),
]
JobId = Annotated[
    str,
    Path(
        min_length=26,
        max_length=26,
        pattern=r"^[0-9a-hjkmnp-tv-z]*$",
        description="The id in the answer to the job's submission.",
    ),
]
Cursor = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="`next` of the page before.",
    ),
]


def _engine(text: str) -> str:
    parse_spec(text)
    return text


def _measure(text: str) -> str:
    source = parse_source(text)
    # A name, not a path: clients must not learn which files a server has.
    if source.recording is not None and not _RECORDING.fullmatch(text.partition(":")[2]):
        raise BadInput(f"a recording is named, without a folder: not {text[:100]!r}")
    return text


EngineSpec = Annotated[
    str,
    AfterValidator(_engine),
    Field(max_length=60, pattern=r"^[A-Za-z0-9_-]+(==[A-Za-z0-9.+!_-]+)?$"),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^sglang(==[0-9][A-Za-z0-9.+]{0,30})?$",
            "description": "An engine, or exactly one version of it.",
            "examples": ["sglang", "sglang==0.5.16"],
        }
    ),
]
Measure = Annotated[
    str,
    AfterValidator(_measure),
    Field(max_length=120, pattern=r"^[A-Za-z0-9:._/-]+$"),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(gpu|predict|replay:[A-Za-z0-9_][A-Za-z0-9._-]{0,99})$",
            "description": "gpu, predict, or replay:NAME of a recording that the workers have.",
            "examples": ["gpu", "predict"],
        }
    ),
]
