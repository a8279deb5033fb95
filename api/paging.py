"""The parameters of lists: filters, pages, and cursors.

An unknown parameter is refused, and the nearest name is suggested. Cursors say where the next page
begins. They are opaque to clients and checked when sent back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from typing import Annotated, Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from api.examples import EXAMPLE_PROBLEM
from api.fields import (
    Cursor,
    DeviceName,
    EngineName,
    EngineSpec,
    KnownDevice,
    Measure,
    Name,
    Strict,
    refusing,
)
from api.matrix import CellState, MatrixOrder, RowFilter
from api.requests import ModelText, ServerFlags, SubmitModel
from api.settings import SERVER_ARGS
from tuner.devices.table import find_device
from tuner.errors import BadInput
from tuner.jobs.job import Job, JobState
from tuner.jobs.queue import JobQuery
from tuner.problems.dtypes import Dtype
from tuner.problems.options import COUNT
from tuner.tuning.request import Effort
from workers.coverage import WatchedFilter
from workers.watches import check_model

Next = Annotated[str | None, Field(description="The next page's `after`; null on the last page.")]


class Page(Strict):
    """The page of a list."""

    after: Cursor | None = None
    limit: int = Field(50, ge=1, le=1000)


class NightsPage(Page):
    """The nights to list."""

    limit: int = Field(50, ge=1, le=50)


class JobPage(Page):
    """The jobs to list."""

    device: DeviceName | None = None
    model: Name | None = Field(
        None, description="A part of the model's name in the job's request, in either case."
    )
    client: Name | None = Field(
        None, description="The first client that posted it: a key's name, nightly or local."
    )
    state: list[JobState] = Field(
        [], max_length=len(JobState), description="Any of these states: state=failed&state=dead."
    )

    def query(self) -> JobQuery:
        """Return the query of the store. Raises UnknownDevice."""
        return JobQuery(
            device=find_device(self.device).name if self.device else None,
            model=self.model,
            client=self.client,
            states=frozenset(self.state),
        )


class StoredPage(Page):
    """The stored results to list."""

    device: DeviceName | None = None


class MatrixPage(Page):
    """The problems to show by device."""

    q: Name | None = Field(None, description="Words of a problem's text or of its models' names.")
    family: Name | None = Field(None, description="A family, such as fused_moe.")
    state: CellState | None = Field(
        None, description="nothing: problems that lack a cell of any of these devices, or of all."
    )
    device: list[DeviceName] = Field([], max_length=100, description="Repeat it for several.")
    order: MatrixOrder = MatrixOrder.NAME

    def wanted(self) -> RowFilter:
        """Return the filter of the list. Raises UnknownDevice."""
        return RowFilter(
            text=self.q or "",
            family=self.family or "",
            state=self.state,
            devices=frozenset(find_device(one).name for one in self.device),
            order=self.order,
        )


class ResultOf(Strict):
    """The result to show."""

    problem: Name = Field(description="A problem's text.", examples=[EXAMPLE_PROBLEM])
    device: DeviceName
    engine: EngineName = "sglang"


class WatchedPage(Page):
    """The watched models to list."""

    device: DeviceName | None = None
    model: Name | None = Field(None, description="The model's name in the watch.")
    family: Name | None = Field(None, description="A family, such as fused_moe.")
    limit: int = Field(20, ge=1, le=100)

    def wanted(self) -> WatchedFilter:
        """Return the filter of the list. Raises UnknownDevice."""
        device = find_device(self.device).name if self.device else None
        return WatchedFilter(device, self.model, self.family)


class ExportIn(Strict):
    """The export to make."""

    engine: EngineSpec = "sglang"
    allow_predicted: bool = Field(False, description="Export predicted winners too.")
    problem: Name | None = Field(None, description="Export the winners for this problem only.")
    server_args: str = Field(
        "",
        max_length=SERVER_ARGS,
        description="Flags and variables that servers are started with. They decide which kernels "
        "run without the files, and so which files are faster and are exported.",
    )


class WinnersQuery(Strict):
    """The device and the engine whose winners to list."""

    device: KnownDevice
    engine: EngineSpec = "sglang"


class PlanQuery(Strict):
    """The model to plan, and how it is served."""

    model: Annotated[ModelText, refusing(check_model)]
    device: KnownDevice
    tp: int = Field(1, ge=COUNT.ge, le=COUNT.le, description="Tensor-parallel size.")
    ep: int = Field(1, ge=COUNT.ge, le=COUNT.le, description="Expert-parallel size.")
    dtype: Dtype | None = Field(None, description="Default: the model's own.")
    engine: EngineSpec = "sglang"
    server_args: ServerFlags = ""
    measure: Measure = "gpu"
    effort: Effort = Effort.STANDARD

    def body(self) -> SubmitModel:
        """Return the body that would queue the jobs of the plan. Raises RequestValidationError."""
        try:
            return SubmitModel.model_validate(self.model_dump(mode="json", exclude_unset=True))
        except ValidationError as error:
            found = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
            raise RequestValidationError(found) from None


T = TypeVar("T")


def page_of(
    found: Sequence[T], limit: int, position: Callable[[T], Sequence[Any]]
) -> tuple[Sequence[T], str | None]:
    """Return a page, and the cursor behind its last item; None if nothing comes after it.

    `found` holds an item more than `limit` if the list goes on after the page.
    """
    page = found[:limit]
    if len(found) <= limit:
        return page, None
    return page, cursor_at(position(page[-1]))


def cursor_at(position: Sequence[Any]) -> str:
    """Return the cursor of a page that begins behind a position."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def read_cursor(text: str | None, read: Callable[[Any], T]) -> T | None:
    """Return the position that `page_of` encoded. Raises BadInput for any other text."""
    if text is None:
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return read(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, BadInput):
        raise BadInput("after: take `next` of the page before, as it is") from None


def read_pair(values: Any) -> tuple[int, int]:  # noqa: ANN401 (JSON)
    """Return two whole numbers. Raises BadInput."""
    match values:
        case [int(first), int(second)] if _is_whole(first) and _is_whole(second):
            return first, second
    raise BadInput


def read_one(values: Any) -> int:  # noqa: ANN401 (JSON)
    """Return a whole number. Raises BadInput."""
    match values:
        case [int(number)] if _is_whole(number):
            return number
    raise BadInput


def job_position(query: JobQuery) -> Callable[[Job], Sequence[Any]]:
    """Return a function that gives a job's place in the list of a query, for a cursor."""
    return lambda job: [job.created_at.isoformat(), job.id, query.digest]


def read_cursor_of(digest: str, text: str | None, read: Callable[[Any], T]) -> T | None:
    """Read a cursor as `read_cursor` does, if the last value of its position is the list's digest.

    Raises BadInput for a cursor of another list: its page would begin at a place without meaning.
    """
    place = read_cursor(text, lambda values: (read(values[:-1]), values[-1]))
    if place is None:
        return None
    if place[1] != digest:
        raise BadInput(
            "after: this cursor belongs to a list with other filters: send them "
            "again as they were, or leave `after` out to begin a new list"
        )
    return place[0]


def read_job_place(values: Any) -> tuple[datetime, str]:  # noqa: ANN401 (JSON)
    """Return the (created_at, id) of a job. Raises BadInput."""
    match values:
        case [str(at), str(job_id)] if job_id.isascii() and job_id.isalnum():
            time = datetime.fromisoformat(at)
            if time.tzinfo is not None:
                return time.astimezone(timezone.utc), job_id
    raise BadInput


def read_row_place(values: Any) -> list[Any]:  # noqa: ANN401 (JSON)
    """Return the place of a row that `RowFilter.place` gave. Raises BadInput."""
    match values:
        case [bool(), float(), bool(), str(), str(), str()]:
            return list(values)
    raise BadInput


def read_date_and_id(values: Any) -> tuple[date, int]:  # noqa: ANN401 (JSON)
    """Return the position of a night in the list of nights: its date and its id."""
    match values:
        case [str(day), int(night_id)] if _is_whole(night_id):
            return date.fromisoformat(day), night_id
    raise BadInput


def _is_whole(number: int) -> bool:
    return type(number) is int and 0 <= number < 1 << 31
