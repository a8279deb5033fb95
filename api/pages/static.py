"""Styles and scripts, read once. Their address changes with their content: browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tuner.draw.svg import scheme_style

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {
    one.name: one.read_bytes()
    for one in (files("api.pages") / "static").iterdir()
    if one.name[one.name.rfind(".") :] in _KINDS
}
_FILES["pages.css"] += scheme_style().encode()
_PACKED = {name: gzip.compress(data, mtime=0) for name, data in _FILES.items()}
VERSION = hashlib.sha256(b"".join(_FILES[name] for name in sorted(_FILES))).hexdigest()[:12]

router = APIRouter(include_in_schema=False)


@router.get("/static/{version}/{name}")
async def get_static(version: str, name: str, request: Request) -> Response:
    """A file of these pages. An address of another version is not to be kept."""
    if name not in _FILES:
        raise HTTPException(404)
    kept = version == VERSION
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if kept else "no-store",
        "Vary": "Accept-Encoding",
    }
    data = _FILES[name]
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["Content-Encoding"] = _PACKED[name], "gzip"
    return Response(data, headers=headers, media_type=_KINDS[name[name.rfind(".") :]])
