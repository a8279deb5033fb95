"""Takes traces of a real server on a GPU, and says how much of their time the families know.

    python benchmarks/profile_gpu.py MODEL --out benchmarks/results/h100/profile-MODEL.json \
        [--layers 12] -- --attention-backend triton

MODEL is what the engine's server takes: a folder, or a name on the hub. With --layers it is a
config.json, as benchmarks/served_models has them, and the server gets so many of its layers with
dummy weights. What follows `--` goes to the server. The script starts the server, sends prompts
while it profiles, reads the trace with `tuner profile`'s reader, and ends the server. OUT has one
profile for each number of sequences, and is written anew after each. The server's log lies beside
it. The script was not run on a GPU yet; `served_smoke.py` took the traces of docs/profile.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tuner.deploy.served.dummy_model import write_dummy_model
from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import run_load
from tuner.deploy.served.process import RunningServer
from tuner.engines.engine import find_engine
from tuner.engines.server import Launch, Server, server_of
from tuner.profile import read
from tuner.profile.capture import Capture, capture
from tuner.profile.estimate import estimate
from tuner.profile.render import render_estimate

WANTED = 0.97  # of the kernels' time
READY_S = 1800.0
ANSWER_S = 600.0
STEPS = 50
ANSWER = 32  # tokens: fewer than STEPS, so that each trace has a prompt


def main() -> None:
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    asked, more = options().parse_args(words[:end]), words[end + 1 :]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        launch = launch_of(asked, Path(name), more)
        found = profiles(asked, launch, Path(name))
    least = min(one["coverage"] for one in found)
    print(f"families know at least {least:.1%} of the kernels' time; wanted: {WANTED:.0%}")
    sys.exit(least < WANTED)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--engine", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--layers", type=int, help="serve so many layers with dummy weights")
    parser.add_argument("--port", type=int, default=30917)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=1024, help="of a prompt")
    parser.add_argument("--out", type=Path, required=True)
    return parser


def launch_of(asked: argparse.Namespace, folder: Path, more: list[str]) -> Launch:
    model = asked.model
    if asked.layers is not None:
        model = str(folder / "model")
        write_dummy_model(Path(asked.model), asked.layers, folder / "model")
    traces = folder / "traces"
    traces.mkdir()
    return Launch(
        version=find_engine(asked.engine).version,
        model=model,
        port=asked.port,
        tp=1,
        args=more,
        dummy=asked.layers is not None,
        memory=None,
        traces=traces,
    )


def profiles(asked: argparse.Namespace, launch: Launch, folder: Path) -> list[dict[str, Any]]:
    """A profile for each number of sequences, as JSON."""
    server, log = server_of(asked.engine), asked.out.resolve().with_suffix(".log")
    about = {"engine": asked.engine, "model": asked.model, "command": server.command(launch)}
    found: list[dict[str, Any]] = []
    with RunningServer(asked.engine, server, launch, os.environ, log) as running:
        running.wait_until_ready(READY_S)
        for sequences in asked.sequences:
            load = Load(sequences, asked.tokens, ANSWER)
            profile = estimate(read(take(server, launch, load)))
            print(render_estimate(profile), flush=True)
            found.append({"sequences": sequences, **profile.as_json()})
            text = json.dumps({**about, "profiles": found}, indent=2)
            asked.out.write_text(text + "\n", encoding="utf-8")
    return found


def take(server: Server, launch: Launch, load: Load) -> list[Path]:
    """The traces that a server writes below a load."""
    assert launch.traces is not None
    done = threading.Event()

    def keep_busy() -> None:
        number = 0
        while not done.is_set():
            number += 1
            run_load(server, launch.port, load, number, ANSWER_S)

    run_load(server, launch.port, load, 0, ANSWER_S)  # the first steps compile kernels
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(keep_busy)
        try:
            url = f"http://127.0.0.1:{launch.port}"
            return capture(Capture(url, launch.traces, steps=STEPS), print)
        finally:
            done.set()
            busy.result()


if __name__ == "__main__":
    main()
