"""Cursors: where the next page begins. They are opaque to clients and checked when sent back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from typing import Any, TypeVar

from tuner.errors import BadInput

T = TypeVar("T")


def next_cursor(
    page: Sequence[T], limit: int, position: Callable[[T], Sequence[Any]]
) -> str | None:
    """The cursor behind a page's last item; None where the page is certainly the last."""
    if len(page) < limit:
        return None
    return base64.urlsafe_b64encode(json.dumps(position(page[-1])).encode()).decode().rstrip("=")


def read_cursor(text: str | None, read: Callable[[Any], T]) -> T | None:
    """The position that `next_cursor` encoded. Raises BadInput for any other text."""
    if text is None:
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return read(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, BadInput):
        raise BadInput("after: take `next` of the page before, as it is") from None


def read_pair(values: Any) -> tuple[int, int]:  # noqa: ANN401 (JSON)
    """Two whole numbers. Raises BadInput."""
    match values:
        case [int(first), int(second)] if _is_whole(first) and _is_whole(second):
            return first, second
    raise BadInput


def read_one(values: Any) -> int:  # noqa: ANN401 (JSON)
    """A whole number. Raises BadInput."""
    match values:
        case [int(number)] if _is_whole(number):
            return number
    raise BadInput


def read_time_and_id(values: Any) -> tuple[datetime, str]:  # noqa: ANN401 (JSON)
    """The position of a job in the list of jobs: when it was created, and its id."""
    match values:
        case [str(at), str(job_id)] if job_id.isascii() and job_id.isalnum():
            time = datetime.fromisoformat(at)
            if time.tzinfo is not None:
                return time.astimezone(timezone.utc), job_id
    raise BadInput


def read_date_and_id(values: Any) -> tuple[date, int]:  # noqa: ANN401 (JSON)
    """The position of a night in the list of nights: its date, and its id."""
    match values:
        case [str(day), int(night_id)] if _is_whole(night_id):
            return date.fromisoformat(day), night_id
    raise BadInput


def _is_whole(number: int) -> bool:
    return type(number) is int and 0 <= number < 1 << 31
