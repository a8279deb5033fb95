"""Bundles: what a cluster would get, and the archive itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.auth import Reader
from api.matrix import CoverageRow
from api.pages.forms import Posted, full_name, mistakes_in, refused_in
from api.pages.render import page
from api.requests import EXAMPLE_CLUSTER, BundleIn
from api.routes.results import archive_of, bundle_of
from api.routes.service import list_devices
from api.state import Api, ApiDep
from tuner.deploy.bundle.build import Bundle
from tuner.errors import BadInput, ExportRefused, UnknownDevice
from tuner.jobs.targets import served_as
from tuner.problems.registry import parse_problem
from tuner.tuning.gains import WITHOUT_US

router = APIRouter(prefix="/bundles", include_in_schema=False)

GPUS = 8  # of a node, in the example
_NODE = """[[nodes]]
name = "node-{at}"
host = "192.168.20.{host}"
interface = "eno1"
gpus = {gpus}
"""
_CHECKS = ("allow_predicted", "allow_missing")


@router.get("")
def show_form(request: Request, caller: Reader, api: ApiDep) -> Response:
    """The form for a bundle."""
    return _page(
        request, caller, api, {"device": full_name(request.query_params.get("device", ""))}
    )


@router.post("")
async def post_cluster(request: Request, form: Posted, caller: Reader, api: ApiDep) -> Response:
    """Show what is in a bundle, or send it; with a mistake, say what it is."""
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
    """A cluster.toml of the model and the size with the most gains, and the device of these.

    Without such a model, it is the example of the API's documentation.
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
    """Return whether a result's files are advised: it beats the kernel that runs without us."""
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
