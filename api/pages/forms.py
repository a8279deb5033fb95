"""Forms: each proves that it was filled in on a page of this server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from api.auth import caller_in
from api.errors import mistakes_of
from api.pages.browser import is_proof, is_same_origin
from api.pages.render import page
from tuner.devices.table import find_device
from tuner.errors import BadInput, UnknownDevice


async def _posted(request: Request) -> Mapping[str, str]:
    """Return the fields of a form that are filled in.

    Raises HTTPException 403 without its proof, and 401 for a caller who is logged out.
    """
    state = request.scope["state"]
    caller_in(request.scope)
    fields: dict[str, str] = state["form"]
    if not is_same_origin(request.headers):
        raise HTTPException(403, "this form was not sent by a page of this server")
    if not is_proof(fields.pop("proof", ""), state.get("session")):
        state["too_old"] = fields
        raise HTTPException(403, "this form is too old: open its page again, and send it again")
    return {name: value.strip() for name, value in fields.items() if value.strip()}


def mistakes_in(error: ValidationError, body: Mapping[str, Any]) -> dict[str, str]:
    """Return the mistakes in the body that a form became, by the field of the form."""
    errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
    found: dict[str, dict[str, str]] = {}
    for one in mistakes_of(errors, body, on_page=True):
        found.setdefault(one.pointer[1:].partition("/")[0], {}).setdefault(one.pointer, one.detail)
    return {name: "; ".join(dict.fromkeys(said.values())) for name, said in found.items()}


def refused_in(error: BadInput, field: str) -> dict[str, str]:
    """Return an error's sentence for each field that it names; for `field` if it names none."""
    named = error.by_field or {field: error}
    return {name: one.in_page_words() for name, one in named.items()}


def ask_first(request: Request, form: Mapping[str, str], back: str) -> Response | None:
    """Return the page that asks "sure?" before something ends, if no script has asked."""
    if not (what := form.get("ask")):
        return None
    fields = {name: value for name, value in form.items() if name != "ask"}
    return page(request, "sure", what=what, fields=fields, back=back)


def full_name(device: str) -> str:
    """Return a device's name as the form offers it; another text stays."""
    try:
        return find_device(device).name
    except UnknownDevice:
        return device


Posted = Annotated[Mapping[str, str], Depends(_posted)]
