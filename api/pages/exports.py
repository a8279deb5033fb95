"""What can be deployed: the exports of each device, and the files in one."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from api.auth import Reader
from api.matrix import devices_of
from api.pages.browser import asked
from api.pages.forms import mistakes_in, refused_in
from api.pages.render import page
from api.routes.results import ExportDevice, export_of, list_proofs
from api.schemas_query import ExportIn
from api.schemas_results import ServedProofPage
from api.state import ApiDep
from tuner.errors import ExportRefused, UnknownEngine
from tuner.problems.fields import Strict

router = APIRouter(prefix="/exports", include_in_schema=False)

MOST_PROOFS = 5  # the newest ones, of any model
_LEFT_OUT = "provenance/left_out,"  # the beginning of the name of the list of what it lacks


@router.get("")
def show_exports(request: Request, caller: Reader, api: ApiDep) -> Response:
    """The devices that something is stored for."""
    rows = api.matrix.rows()
    counts = {
        device: Counter(row.cells[device]["state"].value for row in rows if device in row.cells)
        for device in devices_of(rows)
    }
    stored = {device: some for device, some in counts.items() if set(some) - {"missing"}}
    return page(request, "exports", counts=stored)


class ExportPage(Strict):
    """Which export to show. What the engine may be is looked at later: see `show_export`."""

    engine: str = Field("sglang", max_length=200)
    allow_predicted: bool = False


@router.get("/{device}")
async def show_export(
    device: ExportDevice,
    request: Request,
    wanted: Annotated[ExportPage, Depends(asked(ExportPage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """The files of an export, what it lacks, and what servers gained from such files."""
    of_device = ServedProofPage(device=device, model=None, limit=MOST_PROOFS)
    proofs = (await run_in_threadpool(list_proofs, of_device, caller, api))["proofs"]
    files, archive, refused, mistakes = None, None, "", {}
    try:
        body = wanted.model_dump()
        archive = await export_of(device, api, ExportIn.model_validate(body), request)
        files = await run_in_threadpool(_read, archive.data)
    except ValidationError as error:
        mistakes = mistakes_in(error, body)
    except UnknownEngine as error:
        mistakes = refused_in(error, "engine")
    except ExportRefused as error:
        refused = error.in_page_words()
    return page(
        request,
        "export",
        422 if mistakes else 200,
        device=device,
        wanted=wanted,
        proofs=proofs,
        files=files,
        archive=archive,
        refused=refused,
        mistakes=mistakes,
    )


@dataclass(frozen=True)
class Files:
    """What is in an export: files with results of this store, the engine's own, and what lacks."""

    made: Sequence[tuple[str, int]]  # names and bytes
    engine_s: Sequence[tuple[str, int]]
    records: Sequence[tuple[str, int]]
    left_out: Sequence[Mapping[str, Any]]


def _read(archive: bytes) -> Files:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        sizes = {one.name.partition("/")[2]: one.size for one in tar.getmembers() if one.isfile()}
        left_out: list[Mapping[str, Any]] = []
        for one in tar.getmembers():
            if one.name.partition("/")[2].startswith(_LEFT_OUT):
                text = tar.extractfile(one)
                assert text is not None
                left_out += [json.loads(line) for line in text.read().splitlines()]
    records = {name for name in sizes if name.startswith("provenance/")}
    stems = {PurePath(name).stem.partition(".")[0] for name in records}
    made = {n for n in set(sizes) - records if PurePath(n).stem in stems}
    rest = set(sizes) - records - made
    made_of, others, about = (
        [(name, sizes[name]) for name in sorted(some)] for some in (made, rest, records)
    )
    return Files(made_of, others, about, left_out)
