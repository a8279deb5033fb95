"""The parameters of GET requests. An unknown one is refused, and the nearest known one is named."""

from __future__ import annotations

from pydantic import Field

from api.examples import EXAMPLE_PROBLEM
from api.matrix import CellState, MatrixOrder, RowFilter
from api.text import Cursor, DeviceName, EngineName, EngineSpec, Name, Time
from tuner.devices.table import find_device
from tuner.jobs.job import JobState
from tuner.jobs.queue import JobOrder, JobQuery
from tuner.problems.fields import Strict


class Page(Strict):
    """Which page of a list."""

    after: Cursor | None = None
    limit: int = Field(50, ge=1, le=1000)


class JobPage(Page):
    """Which jobs to list."""

    device: DeviceName | None = None
    model: Name | None = Field(None, description="As the job's request names it.")
    client: Name | None = Field(
        None, description="Who posted it first: a key's name, nightly or local."
    )
    state: list[JobState] = Field(
        [], max_length=len(JobState), description="One of these, as state=failed&state=dead."
    )
    created_after: Time | None = None
    created_before: Time | None = None
    order: JobOrder = JobOrder.NEWEST

    def query(self) -> JobQuery:
        """The query of the store. Raises UnknownDevice."""
        return JobQuery(
            device=find_device(self.device).name if self.device else None,
            model=self.model,
            client=self.client,
            states=frozenset(self.state),
            created_after=self.created_after,
            created_before=self.created_before,
            order=self.order,
        )


class StoredPage(Page):
    """Which stored results to list."""

    device: DeviceName | None = None


class MatrixPage(Page):
    """Which problems to show by device."""

    q: Name | None = Field(None, description="Words of a problem's text or of its models' names.")
    family: Name | None = Field(None, description="Like fused_moe.")
    state: CellState | None = Field(
        None, description="nothing: problems that lack a cell of one of these devices, or of all."
    )
    device: list[DeviceName] = Field([], max_length=100, description="Several may be given.")
    order: MatrixOrder = MatrixOrder.NAME

    def wanted(self) -> RowFilter:
        """What to look for. Raises UnknownDevice."""
        return RowFilter(
            text=self.q or "",
            family=self.family or "",
            state=self.state,
            devices=frozenset(find_device(one).name for one in self.device),
            order=self.order,
        )


class ResultOf(Strict):
    """Which result to show."""

    problem: Name = Field(description="A problem's text.", examples=[EXAMPLE_PROBLEM])
    device: DeviceName
    engine: EngineName = "sglang"


class WatchedPage(Page):
    """Which watched models to list."""

    device: DeviceName | None = None
    limit: int = Field(20, ge=1, le=100)


class ExportIn(Strict):
    """Which export to make."""

    engine: EngineSpec = "sglang"
    allow_predicted: bool = Field(False, description="Export predicted winners too.")
    problem: Name | None = Field(None, description="Export the winners for this problem only.")
    server_args: str = Field(
        "",
        max_length=4096,
        description="Flags and variables that servers are started with. They decide what runs "
        "without the files, and so which files are faster and are exported.",
    )
