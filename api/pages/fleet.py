"""Workers, nights and watches: the work that the service does by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, ValidationError

from api.auth import Admin, Reader
from api.fields import DeviceName
from api.pages.browser import asked
from api.pages.forms import Posted, ask_first, mistakes_in, refused_in
from api.pages.render import go, page
from api.paging import NightsPage, WatchedPage
from api.requests import ModelText, NightIn, WatchIn
from api.routes.coverage import (
    WatchId,
    add_watch,
    get_night,
    list_nights,
    list_watched,
    list_watches,
    remove_watch,
    run_night,
    set_hidden,
)
from api.routes.service import (
    WorkerName,
    drain_workers,
    list_devices,
    list_models,
    list_workers,
    resume_workers,
)
from api.state import ApiDep
from tuner.errors import BadInput
from tuner.problems.dtypes import Dtype
from tuner.problems.registry import families
from tuner.targets import ALL
from workers.nightly import seen_now

router = APIRouter(include_in_schema=False)

_LISTS = ("models", "devices", "tp", "dtypes", "families")


@router.get("/workers")
def show_workers(request: Request, caller: Reader, api: ApiDep) -> Response:
    """List the workers and their jobs."""
    shown, gone = _by_server(list_workers(caller, api)["workers"])
    held = api.jobs.with_ids({one["job_id"] for one in shown if one["job_id"]})
    jobs = {job.id: job.as_json() for job in held.values()}
    return page(request, "workers", shown=shown, gone=gone, jobs=jobs)


def _by_server(
    workers: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the workers that live or are lost, and the starts that later starts replaced.

    The API lists each start of a worker as a worker of its own.
    """
    living = [one for one in workers if one["state"] not in ("stopped", "lost")]
    servers = {(one["host"], one["name"]) for one in living}
    lost: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in sorted(workers, key=lambda one: str(one["seen_at"])):
        if (server := (one["host"], one["name"])) not in servers:
            lost[server] = one  # the newest start tells
    missed = [one for one in lost.values() if one["state"] == "lost"]
    shown = [*living, *missed]
    return shown, [one for one in workers if one not in shown]


@router.post("/workers/{name}/drain")
def drain(name: WorkerName, request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Let a worker finish its job and take no more."""
    drain_workers(name, caller, api)
    return go(request, "workers")


@router.post("/workers/{name}/resume")
def resume(
    name: WorkerName, request: Request, form: Posted, caller: Admin, api: ApiDep
) -> Response:
    """Let a worker take jobs again."""
    resume_workers(name, caller, api)
    return go(request, "workers")


class NightPage(NightsPage):
    """The nights to show, each with the outcomes of the jobs that it queued."""

    limit: int = Field(7, ge=1, le=7)


@router.get("/nights")
def show_nights(
    request: Request,
    wanted: Annotated[NightPage, Depends(asked(NightPage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """Show the plans, the work and the failures of the nights."""
    return _nights(request, wanted, caller, api, None)


@router.post("/nights")
def do_night(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Do tonight's round now, or show the jobs that it would queue."""
    if form.get("dry_run") == "true":
        planned = run_night(caller, api, NightIn(dry_run=True))
        return _nights(request, NightPage(limit=7), caller, api, planned)
    if asking := ask_first(request, form, "nights"):
        return asking
    run_night(caller, api, NightIn(force=form.get("force") == "true"))
    return go(request, "nights")


def _nights(
    request: Request,
    wanted: NightPage,
    caller: Reader,
    api: ApiDep,
    planned: Mapping[str, Any] | None,
) -> Response:
    listed = list_nights(wanted, caller, api)
    nights = [get_night(night["date"], caller, api) for night in listed["nights"]]
    found = {**listed, "nights": nights}
    if planned is not None:
        planned = {**planned, "outcomes": seen_now(planned, api.store)["outcomes"]}
    return page(request, "nights", found=found, planned=planned)


class WatchesPage(WatchedPage):
    """The watched models to list, and the values to fill into the form."""

    models: ModelText | None = None
    devices: DeviceName | None = None


@router.get("/watches")
def show_watches(
    request: Request,
    wanted: Annotated[WatchesPage, Depends(asked(WatchesPage))],
    caller: Reader,
    api: ApiDep,
) -> Response:
    """List the models that are kept tuned."""
    given = {"models": wanted.models or "", "devices": wanted.devices or ""}
    return _watches(request, wanted, caller, api, given, {})


@router.post("/watches")
def add(request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Add a watch; after a mistake, show the form again and name the mistake."""
    body = _body_of(form)
    try:
        add_watch(WatchIn.model_validate(body), caller, api)
    except ValidationError as error:
        said = mistakes_in(error, body)
    except BadInput as error:
        said = refused_in(error, "models")
    else:
        return go(request, "watches")
    return _watches(request, WatchedPage.model_validate({}), caller, api, form, said)


@router.post("/watches/{watch_id}/remove")
def remove(
    watch_id: WatchId, request: Request, form: Posted, caller: Admin, api: ApiDep
) -> Response:
    """Remove a watch."""
    if asking := ask_first(request, form, "watches"):
        return asking
    remove_watch(watch_id, caller, api)
    return go(request, "watches")


@router.post("/watches/{watch_id}/hide")
def hide(watch_id: WatchId, request: Request, form: Posted, caller: Admin, api: ApiDep) -> Response:
    """Hide a problem of a watch, or keep it tuned again."""
    hidden = form.get("hidden") != "false"
    set_hidden(watch_id, form.get("problem", ""), hidden=hidden, api=api)
    return go(request, "watches")


def _watches(
    request: Request,
    wanted: WatchedPage,
    caller: Reader,
    api: ApiDep,
    given: Mapping[str, str],
    mistakes: Mapping[str, str],
) -> Response:
    return page(
        request,
        "watches",
        422 if mistakes else 200,
        watches=list_watches(caller, api)["watches"],
        watched=list_watched(wanted, caller, api),
        wanted=wanted,
        given=given,
        mistakes=mistakes,
        devices=list_devices(caller)["devices"],
        models=list_models(caller)["models"],
        dtypes=[one.value for one in Dtype],
        families=[one.name for one in families()],
    )


def _body_of(form: Mapping[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = dict(form)
    for name in _LISTS:
        if name in form:
            # A problem's text has commas, so models stand on lines.
            parts = re.split(r"[\r\n]+" if name == "models" else r"[\s,]+", form[name])
            body[name] = [part.strip() for part in parts if part.strip()]
    if body.get("families") == [ALL]:
        body["families"] = ALL
    if "tp" in body:
        body["tp"] = [int(one) if one.isascii() and one.isdigit() else one for one in body["tp"]]
    return body
