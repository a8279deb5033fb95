"""Takes a profile from a running server, which writes the trace to its own disk.

Requests: sglang 0.5.16 srt/entrypoints/http_server.py and srt/managers/io_struct.py (ProfileReq);
vLLM 0.33.0 entrypoints/serve/profile/api_router.py. sglang is asked for a number of steps and a
folder. vLLM writes to the folder of its --profiler-config, from start to stop.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import BadInput, ServerUnavailable
from tuner.profile.read import trace_files

_ANSWER_S = 600.0  # sglang answers when its steps are done; vLLM when its trace is written
_SETTLED_S = 2.0  # a trace that has not grown for so long is whole
_LOOK_S = 0.5


@dataclass(frozen=True)
class Capture:
    """What to take, and where the server puts it."""

    url: str  # e.g. http://localhost:30000
    folder: Path  # on the server's disk, which must be this machine's too
    steps: int = 50
    seconds: float = 10.0  # vLLM: how long it profiles


def is_url(text: str) -> bool:
    """Whether a command line names a server and not a file."""
    return urllib.parse.urlsplit(text).scheme in ("http", "https")


def capture(
    asked: Capture, say: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> list[Path]:
    """Let a server profile itself while it serves: the traces that it wrote, of its lowest rank.

    Raises ServerUnavailable where the server does not answer or refuses, and BadInput where no new
    trace lies in the folder.
    """
    before = _sizes(asked.folder)
    engine = _engine(asked.url)
    say(f"{engine} profiles; it needs requests meanwhile")
    if engine == "sglang":
        body = {
            "output_dir": str(asked.folder),
            "num_steps": asked.steps,
            "activities": ["CPU", "GPU"],
        }
        _post(asked.url, "/start_profile", body)
    else:
        _post(asked.url, "/start_profile", None)
        try:
            wait(asked.seconds)
        finally:
            _post(asked.url, "/stop_profile", None)
    return _settled(asked, before, wait)


def _settled(
    asked: Capture, before: Mapping[Path, int], wait: Callable[[float], None]
) -> list[Path]:
    """The new traces, when they no longer grow."""
    last: Mapping[Path, int] = {}
    quiet = waited = 0.0
    while quiet < _SETTLED_S and waited < _ANSWER_S:
        now = {p: size for p, size in _sizes(asked.folder).items() if before.get(p) != size}
        quiet = quiet + _LOOK_S if now and now == last else 0.0
        last = now
        wait(_LOOK_S)
        waited += _LOOK_S
    if not last:
        raise BadInput(
            f"no trace came to {asked.folder}: send requests while the server profiles, and name "
            "the folder by the path that both the server and this machine have"
        )
    return [path for path in trace_files(asked.folder) if path in last]


def _engine(url: str) -> str:
    """The engine that answers: only sglang has /get_server_info or /server_info."""
    for path in ("/server_info", "/get_server_info"):
        try:
            with _open(url, path, None) as answer:
                if "model_path" in json.loads(answer.read()):
                    return "sglang"
        except urllib.error.HTTPError:
            continue
        except (ValueError, OSError) as error:
            raise _unavailable(url, error) from None
    return "vllm"


def _post(url: str, path: str, body: Mapping[str, object] | None) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    try:
        with _open(url, path, data) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        hint = "start vLLM with --profiler-config" if error.code == 404 else "its log says why"
        raise ServerUnavailable(f"{url}{path} answers {error.code}: {hint}") from None
    except (ValueError, OSError) as error:
        raise _unavailable(url, error) from None


def _open(url: str, path: str, data: bytes | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    request = urllib.request.Request(  # noqa: S310  # `is_url` let only http and https through
        url.rstrip("/") + path, data=data, headers={"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=_ANSWER_S)  # noqa: S310


def _unavailable(url: str, error: Exception) -> ServerUnavailable:
    reason = getattr(error, "reason", None) or error
    return ServerUnavailable(f"{url} does not answer: {reason}; give the URL of the engine")


def _sizes(folder: Path) -> dict[Path, int]:
    """The traces in a folder, with their sizes in bytes. Raises BadInput for no folder."""
    try:
        files = [path for path in folder.iterdir() if "trace" in path.name]
        return {path: path.stat().st_size for path in files}
    except OSError as error:
        raise BadInput(f"--folder {folder} cannot be read: {error.strerror}") from None
