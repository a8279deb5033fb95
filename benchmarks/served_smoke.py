"""Do sglang's servers start on this machine? Starts both models of `served_gpu.py` at once.

    python benchmarks/served_smoke.py OUT [--cases qwen3-30b-a3b,deepseek-r1-rank] [--limit 120]

Each has a few layers with dummy weights. No flag chooses a backend but those of `--args`. One
prompt is sent, once for an answer with log-probabilities and once below a profiler. OUT gets the
logs and profiles. Where a server fails, its errors and the end of its log are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from served_gpu import CASES, MODELS

from tuner.deploy.served.dummy_model import write_dummy_model

LAYERS = {"qwen3-30b-a3b": 2, "deepseek-r1-rank": 4}  # deepseek's first three have no experts
PORT = 31000
LAST_LINES = 70


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--limit", type=float, default=120, help="seconds until both are ready")
    parser.add_argument("--args", default="", help="further words for the servers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.limit
    names = args.cases.split(",")
    running = {
        name: started(name, args.out.resolve(), PORT + 10 * number, shlex.split(args.args))
        for number, name in enumerate(names)
    }
    failed = False
    try:
        for number, name in enumerate(names):
            try:
                tried(name, running[name], PORT + 10 * number, args.out.resolve(), until)
            except Exception:  # noqa: BLE001  # said below, with the server's log
                failed = True
                traceback.print_exc()
                show((args.out / f"{name}.log").read_text(errors="replace").splitlines())
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    sys.exit(failed)


def started(name: str, out: Path, port: int, further: list[str]) -> subprocess.Popen[bytes]:
    model = out / f"model-{name}"
    write_dummy_model(MODELS / f"{name}.json", LAYERS[name], model)
    words = [sys.executable, "-m", "tuner.engines.sglang.dummy_server", "--model-path", str(model)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--tp-size", "1"]
    words += ["--disable-radix-cache", "--load-format", "dummy", "--max-total-tokens", "100000"]
    words += further
    with (out / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=subprocess.STDOUT, cwd=out, start_new_session=True
        )


def tried(name: str, process: subprocess.Popen[bytes], port: int, out: Path, until: float) -> None:
    began = time.monotonic()
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"{name} was not ready in time")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health_generate", timeout=5):
                break
        except OSError:
            time.sleep(0.5)
    print(f"{name}: ready {time.monotonic() - began:.0f} s after the server before it", flush=True)
    prompt = {"input_ids": list(range(100, 1124)), "return_logprob": True, "logprob_start_len": 0}
    sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    told = asked(port, "/generate", {**prompt, "sampling_params": sampling})["meta_info"]
    values = [row[0] for row in told["input_token_logprobs"][1:]]
    print(
        f"{name}: {told['completion_tokens']} tokens, log-probabilities of the prompt from "
        f"{min(values):.2f} to {max(values):.2f}",
        flush=True,
    )
    traces = out / f"traces-{name}"
    traces.mkdir(exist_ok=True)
    asked(port, "/start_profile", {"output_dir": str(traces), "activities": ["CPU", "GPU"]})
    asked(port, "/generate", {**prompt, "sampling_params": sampling})
    asked(port, "/stop_profile", {})
    print(f"{name}: profiles {[p.name for p in traces.rglob('*') if p.is_file()]}", flush=True)


def asked(port: int, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401
    request = urllib.request.Request(  # noqa: S310
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        text = response.read()
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()


def show(lines: list[str]) -> None:
    """The errors of a log, each with its traceback's last lines, and the log's end."""
    errors = [n for n, line in enumerate(lines) if "Traceback (most recent" in line]
    for number in errors[:4]:
        print("\n".join(lines[number : number + 60]), "\n----")
    print("\n".join(lines[-LAST_LINES:]), flush=True)


if __name__ == "__main__":
    main()
