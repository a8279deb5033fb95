"""Takes traces of a real server on a GPU, and says how much of their time the families know.

    python benchmarks/profile_gpu.py MODEL --out benchmarks/results/h100/profile-MODEL.json \
        -- --load-format dummy --attention-backend triton

MODEL is what the engine's server takes: a folder with config.json and a tokenizer, or a name. What
follows `--` goes to the server. The script starts the server, sends prompts while it profiles,
reads the trace with `tuner profile`'s reader, and ends the server. It was not run on a GPU yet;
`served_smoke.py` took the traces of docs/profile.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from tuner.profile import read
from tuner.profile.capture import Capture, capture
from tuner.profile.estimate import estimate
from tuner.profile.render import render_estimate

WANTED = 0.97  # of the kernels' time
_READY_S = 1800.0


def server_command(engine: str, model: str, port: int, folder: Path, more: list[str]) -> list[str]:
    """The command that starts an engine's server, with profiling allowed."""
    if engine == "sglang":
        start = ["-m", "sglang.launch_server", "--model-path", model]
    else:
        config = json.dumps({"profiler": "torch", "torch_profiler_dir": str(folder)})
        start = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
        start += ["--profiler-config", config]
    return [sys.executable, *start, "--port", str(port), *more]


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait for /health to answer. Raises SystemExit if the server ends before."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()  # noqa: S310
        except (urllib.error.URLError, OSError):
            time.sleep(2)
        else:
            return
    raise SystemExit(f"the server is not ready after {_READY_S:.0f} s")


def send(url: str, model: str, words: int, answer: int, done: threading.Event) -> None:
    """Send one prompt after the other until `done`. Both engines answer /v1/completions."""
    body = {"model": model, "prompt": "one two " * (words // 2), "max_tokens": answer}
    body |= {"ignore_eos": True, "temperature": 0}
    while not done.is_set():
        request = urllib.request.Request(  # noqa: S310
            f"{url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
            response.read()


def take(url: str, model: str, folder: Path, sequences: int, words: int) -> list[Path]:
    """The traces of a server under a load of so many sequences."""
    done = threading.Event()
    load = [
        threading.Thread(target=send, args=(url, model, words, 64, done), daemon=True)
        for _ in range(sequences)
    ]
    for thread in load:
        thread.start()
    time.sleep(20)  # the first steps compile kernels
    try:
        return capture(Capture(url, folder, steps=50), print)
    finally:
        done.set()
        for thread in load:
            thread.join()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("--engine", choices=("sglang", "vllm"), default="sglang")
    options.add_argument("--port", type=int, default=30917)
    options.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64])
    options.add_argument("--words", type=int, default=1024, help="words of a prompt")
    options.add_argument("--out", type=Path, required=True)
    asked, more = options.parse_known_args()
    more = [word for word in more if word != "--"]
    url, found = f"http://127.0.0.1:{asked.port}", []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = server_command(asked.engine, asked.model, asked.port, folder, more)
        server = subprocess.Popen(command, start_new_session=True)
        try:
            wait_ready(url, server)
            for sequences in asked.sequences:
                traces = take(url, asked.model, folder, sequences, asked.words)
                profile = estimate(read(traces))
                print(render_estimate(profile))
                found.append({"sequences": sequences, **profile.as_json()})
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"engine": asked.engine, "model": asked.model, "command": command, "profiles": found}
    asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    least = min(one["coverage"] for one in found)
    print(f"families know at least {least:.1%} of the kernels' time; wanted: {WANTED:.0%}")
    if least < WANTED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
