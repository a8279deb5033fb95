"""Compare two results of a problem side by side: two devices, or two environments of a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from api.auth import Caller, Reader
from api.fields import EngineName, Name, Strict
from api.matrix import CoverageRow, RowFilter, has_words
from api.pages.browser import asked
from api.pages.names import device_short
from api.pages.render import page
from api.pages.winners import PartChart, Times, WinnerRow, chart_of, entries_of
from api.paging import ResultOf
from api.routes.results import get_result
from api.state import Api, ApiDep
from tuner.draw.shapes import Colour, Glyph
from tuner.tuning.gains import NOISE, mean_gain

router = APIRouter(include_in_schema=False)

_MOST = 60  # problems that are offered
_Side = Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9 _-]*(:[0-9]{1,3})?$")]


class Sides(Strict):
    """Two results to compare: each is a device, or DEVICE:NUMBER for an environment of it."""

    problem: Name | None = None
    q: Name | None = None  # which problems to offer, as in the coverage
    engine: EngineName = "sglang"
    left: _Side | None = None
    right: _Side | None = None


@dataclass(frozen=True)
class Side:
    """A result of a problem."""

    key: str  # as Sides names it
    device: str
    history: Mapping[str, Any]
    entries: Mapping[tuple[str, str], WinnerRow]  # by part and size; if two count, the better

    @property
    def version(self) -> str:
        place = self.history["environment"]
        return f"{place['engine']} {place['engine_version']}"

    @property
    def name(self) -> str:
        """Return the label of a menu; the version differs most often, so it comes first."""
        return f"{self.version}, {device_short(self.device)}"

    @property
    def details(self) -> str:
        """Return the words that tell results of one version on one device apart."""
        place = self.history["environment"]
        driver = f"driver {place['driver']}" if place["driver"] else "predicted"
        return f"Triton {place['triton']}, {driver}"


@dataclass(frozen=True)
class ResultComparison:
    """The first result against the second. The time of a size is the sum over its parts."""

    first: str
    second: str
    ratio: float  # how many times as fast the first is: the geometric mean over sizes
    slower: int  # sizes where the first is slower by more than noise
    sizes: int


@router.get("/compare")
def show_comparison(
    request: Request, wanted: Annotated[Sides, Depends(asked(Sides))], caller: Reader, api: ApiDep
) -> Response:
    """Show the times of two results by size, and how many times as fast the first is."""
    if wanted.problem is None:
        found = api.matrix.find(RowFilter())
        rows = [row for row in found if row.stored and _has(row, wanted.q or "")]
        rows.sort(key=lambda row: -len(row.stored))
        return page(
            request, "compare", wanted=wanted, rows=_offers(rows), total=len(rows), sides=[]
        )
    devices = _devices_of(wanted.problem, wanted.engine, api)
    if not devices:
        raise HTTPException(404, "nothing is published for this problem")
    left, mine = _side(wanted, wanted.left or devices[0], caller, api)
    other = next((name for name in devices if name != left.device), _second(left, mine))
    right, others = _side(wanted, wanted.right or other, caller, api)
    sides = list({side.key: side for side in (*mine, *others)}.values())
    both = [key for key in left.entries if key in right.entries]
    return page(
        request,
        "compare",
        wanted=wanted,
        rows=[],
        sides=sides,
        devices=[name for name in devices if name not in (left.device, right.device)],
        left=left,
        right=right,
        pairs=[_pair(key, left, right) for key in both],
        names=_told_apart(left, right),
        verdict=_verdict(left, right),
        charts=_charts(left, right),
    )


def _devices_of(problem: str, engine: str, api: Api) -> list[str]:
    """Return the devices with a result of the problem."""
    rows = (r for r in api.matrix.rows() if r.problem == problem and r.engine == engine)
    return sorted(name for row in rows for name in row.stored)


def _second(left: Side, mine: Sequence[Side]) -> str:
    """Return another environment of a device if it has several; else the same result."""
    return next((side.key for side in mine if side.key != left.key), left.key)


def _has(row: CoverageRow, text: str) -> bool:
    """Say whether each word is in a row's problem or models, or in the name of a device."""
    return has_words(text, row.problem, row.engine, *row.models, *row.stored)


def _offers(rows: Sequence[CoverageRow]) -> list[tuple[CoverageRow, list[str]]]:
    return [(row, sorted(row.stored)) for row in rows[:_MOST]]


def _side(wanted: Sides, key: str, caller: Caller, api: Api) -> tuple[Side, list[Side]]:
    """Return the result that a key names, and all results of its device, the newest first."""
    device, _, number = key.partition(":")
    which = ResultOf(problem=wanted.problem or "", device=device, engine=wanted.engine)
    result = get_result(which, caller, api)
    sides = [
        Side(
            f"{result['device']}:{number}",
            result["device"],
            history,
            {(one.part, one.size): one for one in entries_of(history["winners"])},
        )
        for number, history in enumerate(result["environments"])
    ]
    if int(number or 0) >= len(sides):
        raise HTTPException(404, f"there are {len(sides)} results for this problem on {device}")
    return sides[int(number or 0)], sides


def _told_apart(left: Side, right: Side) -> tuple[str, str]:
    """Return the shortest names that tell two results apart."""
    if left.device != right.device and left.version != right.version:
        return left.name, right.name
    if left.device != right.device:
        return device_short(left.device), device_short(right.device)
    if left.version != right.version:
        return left.version, right.version
    return "the first", "the second"


def _pair(
    key: tuple[str, str], left: Side, right: Side
) -> tuple[str, str, WinnerRow, WinnerRow, float | None]:
    """Return the entries of a part at a size, and how many times as fast the first is."""
    first, second = left.entries[key], right.entries[key]
    mine, other = first.winner["median_us"], second.winner["median_us"]
    return *key, first, second, _apart(other / mine) if mine and other else None


def _apart(ratio: float) -> float:
    """Return a ratio of times; 1 if the first is slower by no more than noise."""
    return 1.0 if 1 - NOISE <= ratio < 1 else ratio


def _verdict(left: Side, right: Side) -> ResultComparison | None:
    """Compare two results; None if no size has a time for all parts of both."""
    ratios = []
    for size in dict.fromkeys(size for _, size in left.entries):
        some = [_times_at(side, size) for side in (left, right)]
        if all(some) and some[0].keys() == some[1].keys():
            ratios.append(sum(some[1].values()) / sum(some[0].values()))
    mean = mean_gain(ratios)
    if mean is None:
        return None
    slower = sum(_apart(ratio) < 1 for ratio in ratios)
    return ResultComparison(*_told_apart(left, right), _apart(mean), slower, len(ratios))


def _times_at(side: Side, size: str) -> dict[str, float]:
    """Return the time of each part of a size; empty unless each part has a time."""
    found = {part: e.winner["median_us"] for (part, at), e in side.entries.items() if at == size}
    return found if all(found.values()) else {}


def _charts(left: Side, right: Side) -> list[PartChart]:
    parts = dict.fromkeys(part for part, _ in (*left.entries, *right.entries))
    names, charts = _told_apart(left, right), []
    for part in parts:
        first, second = (
            {
                size: entry.winner["median_us"]
                for (its_part, size), entry in side.entries.items()
                if its_part == part and entry.winner["median_us"]
            }
            for side in (left, right)
        )
        lines = (
            Times(names[0], first, Colour.SECOND, Glyph.DISC),
            Times(names[1], second, Colour.FIRST, Glyph.SQUARE),
        )
        if chart := chart_of(part, lines):
            charts.append(chart)
    return charts
