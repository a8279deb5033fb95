"""An HTTP server that answers as an engine's does, without a model.

Its speed is this machine's, so tests look at what is answered and never at how fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zlib import crc32

_SLEEP = "import time; time.sleep(600)"


def main(own: argparse.ArgumentParser, routes: Callable[[argparse.Namespace], Any]) -> None:
    """Serve on the port of the command line. `routes` makes what answers by path and body."""
    own.add_argument("--host")
    own.add_argument("--port", type=int)
    own.add_argument("--load-format", default="auto")
    own.add_argument("--die", default="")  # end at once, with this message
    own.add_argument("--hang", action="store_true")  # never become ready
    own.add_argument("--other-outputs", type=float, default=0.0)  # log-probabilities are off so
    own.add_argument("--ignore-files", action="store_true")
    own.add_argument("--short-answers", action="store_true")
    own.add_argument("--die-at-load", action="store_true")
    args, _ = own.parse_known_args()
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s TP0] %(message)s")
    _tell(_processes())
    if args.die:
        sys.exit(args.die)
    answer = routes(args)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if args.hang else 200)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if args.die_at_load:
                logging.error("an illegal memory access was encountered")
                os._exit(3)
            found = answer(self.path, body)
            self.send_response(200)
            self.end_headers()
            if isinstance(found, Iterator):
                for event in found:
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")
            else:
                self.wfile.write(json.dumps(found).encode())

        def log_message(self, format: str, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            super().server_bind()

    Server(("127.0.0.1", args.port), Handler).serve_forever()


def logprob(tokens: Iterable[int], args: argparse.Namespace) -> float:
    return -1.0 - crc32(repr(list(tokens)).encode()) % 1000 / 1000 - args.other_outputs


def chosen(prompt: list[int], count: int) -> list[int]:
    return [crc32(repr((prompt[-4:], at)).encode()) % 1000 for at in range(count)]


def log_files(folder: Path, message: str, args: argparse.Namespace) -> None:
    """Name every file of a config folder, as a loader does when it has read one."""
    for path in sorted(folder.rglob("*.json")):
        if "provenance" not in path.parts and not args.ignore_files:
            logging.info(message, path)


def _processes() -> list[int]:
    """Children as engines have them: one in this process group, and one in another session."""
    same = subprocess.Popen([sys.executable, "-c", _SLEEP])
    apart = subprocess.Popen([sys.executable, "-c", _SLEEP], start_new_session=True)
    return [os.getpid(), same.pid, apart.pid]


def _tell(pids: list[int]) -> None:
    """Write the processes' numbers into the test's pipe."""
    with contextlib.suppress(KeyError), Path(os.environ["STAND_IN_PIDS"]).open("w") as pipe:
        pipe.write(json.dumps(pids) + "\n")
