"""Archives to download: exports of winners, and bundles for a cluster."""

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
from api.exports import Archive
from api.fields import Strict
from api.matrix import CoverageRow, devices_of
from api.pages.browser import asked
from api.pages.forms import Posted, full_name, mistakes_in, refused_in
from api.pages.render import page
from api.paging import ExportIn
from api.requests import EXAMPLE_CLUSTER, BundleIn
from api.routes.results import ExportDevice, archive_of, bundle_of, export_of
from api.routes.service import list_devices
from api.state import Api, ApiDep
from tuner.deploy.bundle.build import Bundle
from tuner.errors import BadInput, ExportRefused, UnknownDevice, UnknownEngine
from tuner.models.served_as import served_as
from tuner.problems.registry import parse_problem
from tuner.tuning.gains import WITHOUT_US

router = APIRouter(prefix="/exports", include_in_schema=False)

_LEFT_OUT = "provenance/left_out,"  # the beginning of the name of the list of problems it lacks


@router.get("")
def show_exports(request: Request, caller: Reader, api: ApiDep) -> Response:
    """List the devices with stored results."""
    rows = api.matrix.rows()
    counts = {
        device: Counter(row.cells[device]["state"].value for row in rows if device in row.stored)
        for device in devices_of(rows)
    }
    stored = {device: some for device, some in counts.items() if some}
    return page(request, "exports", counts=stored)


class ExportPage(Strict):
    """The export to show. `show_export` checks the engine later."""

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
    """Show the files of an export, and the problems that it lacks."""
    files, archive, refused, mistakes = None, None, "", {}
    try:
        body = wanted.model_dump()
        archive = await export_of(device, api, ExportIn.model_validate(body), request)
        files = await run_in_threadpool(_read, archive)
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
        files=files,
        archive=archive,
        refused=refused,
        mistakes=mistakes,
    )


@dataclass(frozen=True)
class Files:
    """The files of an export: with results of this store, the engine's own, and the missing
    problems.
    """

    made: Sequence[tuple[str, int]]  # names and bytes
    engine_s: Sequence[tuple[str, int]]
    records: Sequence[tuple[str, int]]
    left_out: Sequence[Mapping[str, Any]]


def _read(archive: Archive) -> Files:
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.pieces()))) as tar:
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


bundles = APIRouter(prefix="/bundles", include_in_schema=False)

GPUS = 8  # of a node, in the example
_NODE = """[[nodes]]
name = "node-{at}"
host = "192.168.20.{host}"
interface = "eno1"
gpus = {gpus}
"""
_CHECKS = ("allow_predicted", "allow_missing")


@bundles.get("")
def show_form(request: Request, caller: Reader, api: ApiDep) -> Response:
    """Show the form for a bundle."""
    return _page(
        request, caller, api, {"device": full_name(request.query_params.get("device", ""))}
    )


@bundles.post("")
async def post_cluster(request: Request, form: Posted, caller: Reader, api: ApiDep) -> Response:
    """Show the files of a bundle, or send it; after a mistake, name the mistake."""
    given = dict(form)
    download = given.pop("download", "") == "true"
    body = {name: value == "true" if name in _CHECKS else value for name, value in given.items()}
    try:
        bundle = await bundle_of(BundleIn.model_validate(body), api, request)
    except ValidationError as error:
        return _page(request, caller, api, form, mistakes=mistakes_in(error, body))
    except UnknownDevice as error:
        return _page(request, caller, api, form, mistakes=refused_in(error, "device"))
    except ExportRefused as error:
        return _page(request, caller, api, form, refused=error.in_page_words())
    except BadInput as error:
        return _page(request, caller, api, form, mistakes=refused_in(error, "cluster"))
    return archive_of(bundle) if download else _page(request, caller, api, form, bundle=bundle)


def _usual(rows: Sequence[CoverageRow], device: str) -> tuple[str, str]:
    """Return a cluster.toml of the model and the size with the most gains, and their device.

    Without such a model, return the example of the API's documentation.
    """
    counts: Counter[tuple[str, int, str, str]] = Counter()
    for row in (row for row in rows if row.models and row.engine == "sglang"):
        for name, cell in row.cells.items():
            if device in ("", name) and _gains(cell):
                served = [one for one in served_as(parse_problem(row.problem)) if not one.dtype]
                version = cell["engine_version"]
                counts.update((one.model, tp, version, name) for one in served for tp in one.tp)
    if not counts:
        return EXAMPLE_CLUSTER, device
    (model, tp, version, device), _ = max(counts.items(), key=lambda one: (one[1], one[0]))
    head = EXAMPLE_CLUSTER.partition("[[nodes]]")[0]
    for old, new in (
        ('"one-node"', f'"{model}"'),
        ("mixtral-8x7b", model),
        ("Mixtral-8x7B-Instruct-v0.1", model),
        ("v0.5.16", f"v{version}"),
        ("tp = 8", f"tp = {tp}"),
    ):
        head = head.replace(old, new)
    count = max(1, tp // GPUS)
    nodes = (_NODE.format(at=at, host=10 + at, gpus=min(tp, GPUS)) for at in range(1, count + 1))
    return head + "\n".join(nodes), device


def _gains(cell: Mapping[str, Any]) -> bool:
    """Say whether a result's files are advised: it beats the server's own choice."""
    return cell["over"] == WITHOUT_US and (cell["speedup"] or 0) > 1


def _page(
    request: Request,
    caller: Reader,
    api: Api,
    given: Mapping[str, str],
    *,
    mistakes: Mapping[str, str] | None = None,
    refused: str = "",
    bundle: Bundle | None = None,
) -> Response:
    example, device = _usual(api.matrix.rows(), given.get("device", ""))
    return page(
        request,
        "bundles",
        422 if mistakes else 200,
        given={**given, "device": device},
        mistakes=mistakes or {},
        refused=refused,
        bundle=bundle,
        example=example,
        devices=[one["name"] for one in list_devices(caller)["devices"]],
    )
