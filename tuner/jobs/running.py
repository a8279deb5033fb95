"""Ask a running server for its model and its flags.

sglang answers all fields of its ServerArgs, as its release resolved them, at /server_info (releases
before 0.5.12 at /get_server_info). vLLM says its release at /version and its model at /v1/models;
it does not tell its flags, so they are given beside its URL. A service asks only the servers that
its operator lists.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tuner.engines.logs.settings import of_fields, words_of
from tuner.errors import BadInput, ServerUnavailable
from tuner.jobs.web import checked_url, opener_for

LISTED = "TUNER_SERVERS"
_TIMEOUT_S = 5.0
_LARGEST = 4 << 20  # bytes; 0.5.23 answers 60 kB
_SGLANG = ("/server_info", "/get_server_info")
_RANKS = {  # logs tell them as facts of their own
    "tp_size": "--tp-size",
    "dp_size": "--dp-size",
    "attn_dp_size": "--attn-dp-size",
}
_NAME_IT, _CLI, _API = "name its model, with its flags in ", "--server-args", "server_args"


@dataclass(frozen=True)
class RunningServer:
    """A server that was asked."""

    url: str
    spec: str  # its engine and release, as sglang==0.5.16
    model: str  # as the server was given it: a repository's name, or a path on its machine
    server_args: str | None  # the flags that count for problems and kernels; None: it tells none


def ask_listed(url: str) -> RunningServer:
    """Ask a server that TUNER_SERVERS lists, as HOST:PORT; see `ask_server`.

    Raises BadInput for a server that is not listed.
    """
    place = urlsplit(checked_url(url)).netloc
    if place not in os.environ.get(LISTED, "").replace(",", " ").split():
        raise BadInput(
            f"this service asks only the servers that its operator lists in {LISTED}, and {place} "
            "is none of them: name the model, with its server's flags"
        )
    return ask_server(url)


def ask_server(url: str) -> RunningServer:
    """Ask the sglang or vLLM server at a URL.

    Raises BadInput for a text that is no URL or a server that is neither, and ServerUnavailable if
    no whole answer comes.
    """
    base = checked_url(url)
    for path in _SGLANG:
        said = _get(base, path)
        if said and isinstance(said.get("model_path"), str) and "version" in said:
            spec = f"sglang=={said['version']}"
            return RunningServer(base, spec, said["model_path"], _flags(said))
    version, models = _get(base, "/version"), _get(base, "/v1/models")
    try:
        first = models["data"][0] if models else {}
        model, spec = str(first["root"]), f"vllm=={version['version']}" if version else ""
    except (LookupError, TypeError):
        model = spec = ""
    if not model or not spec:
        raise BadInput(
            f"{base} answers as neither an sglang nor a vLLM server: give the address that clients "
            "of the model use, without a path"
        )
    return RunningServer(base, spec, model, None)


def _flags(said: Mapping[str, Any]) -> str:
    scalars = {
        name: str(value) for name, value in said.items() if isinstance(value, str | int | float)
    }
    ranks = {flag: scalars[name] for name, flag in _RANKS.items() if scalars.get(name, "1") != "1"}
    found = {**ranks, **dict(of_fields(scalars))}
    return shlex.join(word for name, value in found.items() for word in words_of(name, value))


def _get(base: str, path: str) -> Mapping[str, Any] | None:
    """Return the object at a path; None if the server has no such path or another content there."""
    try:
        with opener_for(base).open(base + path, timeout=_TIMEOUT_S) as answer:
            text = answer.read(_LARGEST + 1)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise BadInput(f"{base} asks for a key: {_NAME_IT}", cli=_CLI, api=_API) from None
        if error.code >= 500:
            raise _away(f"{base}{path} answers {error.code}") from None
        return None
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", None) or error).strip()
        raise _away(f"{base} does not answer: {reason}") from None
    if len(text) > _LARGEST:
        raise _away(f"{base}{path} answers more than {_LARGEST >> 20} MiB")
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _away(said: str) -> ServerUnavailable:
    return ServerUnavailable(f"{said}: try again later, or {_NAME_IT}", cli=_CLI, api=_API)
