"""Proofs in a live engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from api.auth import Reader
from api.bodies import JsonRoute
from api.errors import responses
from api.paging import page_of, read_cursor, read_one
from api.schemas_proofs import ServedProofPage, ServedProofsOut
from api.state import ApiDep
from tuner.devices.table import find_device

router = APIRouter(prefix="/v1/served-proofs", tags=["results"], route_class=JsonRoute)


@router.get("", response_model=ServedProofsOut, responses=responses())
def list_proofs(
    page: Annotated[ServedProofPage, Query()], caller: Reader, api: ApiDep
) -> dict[str, Any]:
    """List what servers gained from exported files, the newest first."""
    device = find_device(page.device).name if page.device else None
    after = read_cursor(page.after, read_one)
    found = api.proofs.proofs(after=after, limit=page.limit + 1, device=device, model=page.model)
    proofs, cursor = page_of(found, page.limit, lambda proof: [proof.id])
    return {"proofs": [asdict(proof) for proof in proofs], "next": cursor}
