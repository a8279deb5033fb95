"""HTTP servers on this machine that answer as an engine's server does.

sglang's answer is made by the handler of a release's own http_server.py. The arguments that the
handler is given are the fields that the release's ServerArgs declares, with values of the test.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, make_dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

from real_sglang import package


@contextlib.contextmanager
def answering(answers: Mapping[str, tuple[int, bytes]]) -> Iterator[str]:
    """The URL of a server that has these paths, each with its status and its body.

    A status of a redirect has the new address for its body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"Not Found"))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", body.decode())
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has read enough
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def sglang_server(version: str, **values: Any) -> Iterator[str]:
    """The URL of what answers as an sglang server of a release with these arguments."""
    path, said = sglang_answer(version, **values)
    with answering({path: (200, json.dumps(said).encode())}) as url:
        yield url


def sglang_answer(version: str, **values: Any) -> tuple[str, dict[str, Any]]:
    """The path at which a release tells its arguments, and what its handler answers there."""
    root = package(version) / "srt"
    handlers = _functions(root / "entrypoints" / "http_server.py")
    name = "server_info" if "server_info" in handlers else "get_server_info"
    fields = [one for one in _server_args(root) if one not in values]
    arguments = make_dataclass("ServerArgs", [*fields, *values])(**dict.fromkeys(fields), **values)
    arguments.describe_kv_events_publisher = lambda: None
    arguments.resolved_dict = lambda: asdict(arguments)
    arguments.launch_command = "python -m sglang.launch_server"

    async def internal_states() -> Any:
        return {} if name == "get_server_info" else [{}]

    names: dict[str, Any] = {
        "dataclasses": SimpleNamespace(asdict=asdict),
        "msgspec_to_builtins": lambda said: said,
        "redact_watermark_secrets": lambda said: said,
        "describe_kv_events_publisher": lambda _: None,
        "__version__": version,
        "_global_state": SimpleNamespace(
            scheduler_info={"max_total_num_tokens": 1 << 20},
            tokenizer_manager=SimpleNamespace(
                server_args=arguments, get_internal_state=internal_states, startup_time=1.0
            ),
        ),
    }
    wanted = [handlers[name]]
    if "build_server_info" in ast.unparse(handlers[name]):
        wanted.append(_functions(root / "utils" / "common.py")["build_server_info"])
    for function in wanted:
        function.decorator_list = []
        for argument in function.args.args:
            argument.annotation = None
        function.returns = None
        function.body = [_unannotated(one) for one in function.body]
        exec(compile(ast.unparse(function), function.name, "exec"), names)  # noqa: S102
    return f"/{name}", asyncio.run(names[name]())


def _functions(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text())
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    return {one.name: one for one in tree.body if isinstance(one, functions)}


def _unannotated(statement: ast.stmt) -> ast.stmt:
    """A local assignment without its type, whose names a stand-in lacks."""
    if isinstance(statement, ast.AnnAssign) and statement.value:
        return ast.copy_location(ast.Assign([statement.target], statement.value), statement)
    return statement


def _server_args(root: Path) -> list[str]:
    """The fields that a release's ServerArgs declares, also in `arg_groups/fields`."""
    found = []
    for path in [root / "server_args.py", *sorted((root / "arg_groups" / "fields").glob("*.py"))]:
        for one in ast.parse(path.read_text()).body:
            own = isinstance(one, ast.ClassDef) and (
                one.name == "ServerArgs" or path.name != "server_args.py"
            )
            if own:
                assigned = [it.target for it in one.body if isinstance(it, ast.AnnAssign)]
                found += [it.id for it in assigned if isinstance(it, ast.Name)]
    assert "tp_size" in found and "model_path" in found, f"{root} declares its arguments elsewhere"
    return list(dict.fromkeys(found))
