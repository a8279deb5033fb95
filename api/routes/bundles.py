"""Bundles: all that a cluster needs to start its servers with the stored results."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from api.auth import Reader
from api.bodies import JsonRoute
from api.bundles import BundleRequest, read_posted
from api.errors import responses
from api.schemas_in import BundleIn
from api.state import ApiDep
from tuner.deploy.bundle.build import Bundle
from tuner.devices.table import find_device

router = APIRouter(prefix="/v1/bundles", tags=["results"], route_class=JsonRoute)

MEDIA = "application/gzip"


@router.post(
    "",
    response_class=Response,
    responses={
        **responses(409, 415),
        200: {
            "description": "The archive; equal stores give equal bytes.",
            "content": {MEDIA: {"schema": {"type": "string", "format": "binary"}}},
            "headers": {
                "Content-Disposition": {
                    "description": "The name of the archive.",
                    "schema": {"type": "string"},
                },
            },
        },
    },
)
async def make_archive(body: BundleIn, caller: Reader, api: ApiDep, request: Request) -> Response:
    """Pack a device's winners with launch scripts and checks for a cluster, as a .tar.gz."""
    return archive_of(await bundle_of(body, api, request))


async def bundle_of(body: BundleIn, api: ApiDep, request: Request) -> Bundle:
    """The bundle of a body."""
    if end_turn := request.scope["state"].get("end_turn"):  # bundles wait for one another alone
        end_turn()
    device = find_device(body.device)
    cluster = await run_in_threadpool(read_posted, body.cluster)
    asked = BundleRequest(cluster, device, body.allow_predicted, body.allow_missing)
    return await api.bundles.get(asked)


def archive_of(bundle: Bundle) -> Response:
    """A bundle as a download."""
    name = {"Content-Disposition": f'attachment; filename="{bundle.name}.tar.gz"'}
    return Response(bundle.archive, media_type=MEDIA, headers={**name, "Cache-Control": "no-store"})
