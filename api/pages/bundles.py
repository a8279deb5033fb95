"""Bundles: what a cluster would get, and the archive itself."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.auth import Reader
from api.pages.forms import Posted, mistakes_in, refused_in
from api.pages.render import page
from api.routes.bundles import archive_of, bundle_of
from api.routes.tables import list_devices
from api.schemas_in import EXAMPLE_CLUSTER, BundleIn
from api.state import ApiDep
from tuner.deploy.bundle.build import Bundle
from tuner.errors import BadInput, ExportRefused, UnknownDevice

router = APIRouter(prefix="/bundles", include_in_schema=False)

_CHECKS = ("allow_predicted", "allow_missing")


@router.get("")
def show_form(request: Request, caller: Reader) -> Response:
    """The form for a bundle."""
    return _page(request, caller, {"device": request.query_params.get("device", "")})


@router.post("")
async def post_cluster(request: Request, form: Posted, caller: Reader, api: ApiDep) -> Response:
    """Show what is in a bundle, or send it; with a mistake, say what it is."""
    given = dict(form)
    download = given.pop("download", "") == "true"
    body = {name: value == "true" if name in _CHECKS else value for name, value in given.items()}
    try:
        bundle = await bundle_of(BundleIn.model_validate(body), api, request)
    except ValidationError as error:
        return _page(request, caller, form, mistakes=mistakes_in(error, body))
    except UnknownDevice as error:
        return _page(request, caller, form, mistakes=refused_in(error, "device"))
    except ExportRefused as error:
        return _page(request, caller, form, refused=error.in_page_words())
    except BadInput as error:
        return _page(request, caller, form, mistakes=refused_in(error, "cluster"))
    return archive_of(bundle) if download else _page(request, caller, form, bundle=bundle)


def _page(
    request: Request,
    caller: Reader,
    given: Mapping[str, str],
    *,
    mistakes: Mapping[str, str] | None = None,
    refused: str = "",
    bundle: Bundle | None = None,
) -> Response:
    return page(
        request,
        "bundles",
        422 if mistakes else 200,
        given=given,
        mistakes=mistakes or {},
        refused=refused,
        bundle=bundle,
        example=EXAMPLE_CLUSTER,
        devices=[one["name"] for one in list_devices(caller)["devices"]],
    )
