"""Run the command line of the single file, which uses only Python's standard library."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from tuner.deploy.preflight.all_checks import PreflightResult, render, run_preflight
from tuner.deploy.preflight.capture import capture, captured_text
from tuner.deploy.preflight.facts import Expected, read_expected
from tuner.errors import BadInput


def parse_nodes(pairs: list[str]) -> dict[str, Path]:
    """Read `NAME=DIR` pairs. Raises BadInput."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, equals, folder = pair.partition("=")
        if not (name and equals and folder):
            raise BadInput(f"{pair!r} is not NAME=DIR, e.g. --node node01=captures/node01")
        if name in found:
            raise BadInput(f"node {name!r} is given twice")
        found[name] = Path(folder)
    return found


def check_here(
    image: str = "",
    config_dir: str = "",
    expected: Expected | None = None,
) -> PreflightResult:
    """Capture this machine into a temporary folder, and check it."""
    with tempfile.TemporaryDirectory() as folder:
        image = image or (expected.image if expected else "")
        capture(Path(folder), image, config_dir)
        return run_preflight({socket.gethostname(): Path(folder)}, expected)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return 0: no error found; 1: an error found; 2: bad input."""
    parser = argparse.ArgumentParser(
        description="Check GPU nodes and their network before an engine is launched on them."
    )
    add = parser.add_argument
    node_help = "a node's captured outputs; may be given again; default: check this machine"
    add("--node", action="append", default=[], metavar="NAME=DIR", help=node_help)
    add("--cluster", type=Path, help="the bundle's cluster.json; default: none")
    add("--capture", type=Path, metavar="DIR", help="only capture into DIR; default: check")
    add("--image", default="", help="container image whose id is recorded; default: none")
    add("--config-dir", default="", help="folder of configs to hash; default: none")
    add("--json", action="store_true", help="print JSON; default: text")
    options = parser.parse_args(arguments)
    try:
        if options.capture:
            silent = capture(options.capture, options.image, options.config_dir)
            sys.stderr.write(captured_text(options.capture, silent) + "\n")
            return 0
        expected = read_expected(options.cluster) if options.cluster else None
        if options.node:
            result = run_preflight(parse_nodes(options.node), expected)
        else:
            result = check_here(options.image, options.config_dir, expected)
    except BadInput as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    text = json.dumps(result.as_dict(), indent=2) + "\n" if options.json else render(result)
    try:
        print(text, end="", flush=True)  # noqa: T201 - nothing, if standard output is closed
    except OSError as error:  # a full disk, or `| head`
        sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2
    return 0 if result.ok else 1
