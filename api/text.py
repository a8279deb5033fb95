"""Types of text in requests, with their bounds, for schemas and for handlers."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from api.examples import JOB_ID
from tuner.engines.engine import parse_spec
from tuner.errors import BadInput
from tuner.tuning.request import parse_source

_RECORDING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
# No NUL, which PostgreSQL cannot hold, no line breaks, and nothing that steers a terminal or turns
# the direction of the text around it: names are printed in lists.
PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"

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
        examples=[JOB_ID],
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


_TIME = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})$"
)


def _time_text(text: object) -> object:
    # Pydantic would also take a number of seconds, and a time without a zone.
    if not isinstance(text, str) or not re.fullmatch(_TIME, text):
        raise ValueError("a time is like 2026-11-20T05:00:00Z, and + is %2B in a URL")
    return text


def _utc(time: datetime) -> datetime:
    try:
        return time.astimezone(timezone.utc)
    except OverflowError:  # before the year 1, or after the year 9999
        return (datetime.min if time.year == 1 else datetime.max).replace(tzinfo=timezone.utc)


Time = Annotated[
    datetime,
    BeforeValidator(_time_text),
    AfterValidator(_utc),
    WithJsonSchema(
        {
            "type": "string",
            "format": "date-time",
            "pattern": _TIME,
            "description": "A time with its offset from UTC. A job of that moment is left out.",
            "examples": ["2026-11-20T05:00:00Z"],
        }
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
EngineName = Annotated[
    str, Field(max_length=60, pattern=r"^[a-z0-9_-]+$", description="An engine, without a version.")
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
