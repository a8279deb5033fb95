"""What a newcomer has to read: lines of code, and the files that one run and one job enter.

    python benchmarks/house.py

A file is entered if one of its functions is called. The run is `tuner tune` on a recording; the
job is the same, posted to `tuner serve` on SQLite, with the processes that its worker starts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "tests/data/recordings/h200_E256_N64_K7168_top8_int8w8a8.csv.gz"
PROBLEM = "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant"
SIZES = (2, 64)
RINGS = {
    "product": ("tuner", "api", "workers", "migrations"),
    "tests": ("tests",),
    "benchmarks": ("benchmarks",),
}
TUNER = [sys.executable, "-c", "from tuner.cli import main; main()"]
# Python runs a module `sitecustomize` at the start of each process that finds it on its path.
HOOK = """
import os, sys, threading
seen, OF_A_FUNCTION = set(), 1  # CO_OPTIMIZED: neither a module's code nor a class's

def enter(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename not in seen and code.co_flags & OF_A_FUNCTION:
        seen.add(code.co_filename)
        if code.co_filename.startswith({folders!r}):
            with open({out!r} + f"/{{os.getpid()}}", "a") as file:
                file.write(code.co_filename + "\\n")

threading.setprofile(enter)
sys.setprofile(enter)
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for name, folders in RINGS.items():
        print(f"{name}: {lines(folders):,} lines")
    for name, action in (("tuner tune", tune), ("one job over HTTP", post_job)):
        files = entered(action)
        total = sum(len(path.read_text().splitlines()) for path in files)
        print(f"{name}: enters {len(files)} files with {total:,} lines")


def lines(folders: tuple[str, ...]) -> int:
    """The lines of the Python files that git knows."""
    command = ["git", "ls-files", "-z", *(f"{folder}/**.py" for folder in folders)]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sum(len((ROOT / name).read_text().splitlines()) for name in names.split("\0") if name)


def entered(action: Any) -> set[Path]:  # noqa: ANN401
    """The project's files that an action enters, in all of its processes."""
    # The checkout may hold an environment with libraries, which do not count.
    folders = tuple(str(ROOT / name) + os.sep for name in RINGS["product"])
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        (home / "hook").mkdir()
        (home / "seen").mkdir()
        (home / "hook/sitecustomize.py").write_text(
            HOOK.format(folders=folders, out=str(home / "seen"))
        )
        environ = {
            **os.environ,
            "HOME": name,
            "PYTHONPATH": f"{home / 'hook'}{os.pathsep}{ROOT}",
            "TUNER_DATABASE_URL": f"sqlite:///{home / 'tuner.db'}",
            "TUNER_CACHE_DIR": str(home / "cache"),
            "TUNER_RECORDINGS": str(RECORDING.parent),
        }
        action(environ)
        return {
            Path(line)
            for process in (home / "seen").iterdir()
            for line in process.read_text().splitlines()
        }


def tune(environ: dict[str, str]) -> None:
    sizes = ",".join(map(str, SIZES))
    words = ["tune", PROBLEM, "--device", "H200", "--measure", f"replay:{RECORDING}"]
    command = [*TUNER, *words, "--batch-sizes", sizes]
    subprocess.run(command, env=environ, cwd=environ["HOME"], check=True, stdout=subprocess.DEVNULL)


def post_job(environ: dict[str, str]) -> None:
    """Serve, post a job and wait for its end."""
    command = [*TUNER, "serve", "--port", "0", "--no-auth"]
    with subprocess.Popen(
        command, env=environ, cwd=environ["HOME"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        at = next(line for line in server.stdout if "The service answers on " in line).split()[4]
        body = {"model": PROBLEM, "device": "H200", "batch_sizes": list(SIZES)}
        try:
            job = ask(f"{at}/v1/jobs", {**body, "measure": f"replay:{RECORDING.name}"})
            while job["state"] in ("queued", "leased", "running"):
                time.sleep(0.5)
                job = ask(f"{at}/v1/jobs/{job['id']}")
        finally:
            server.terminate()
            server.stdout.read()
    assert job["state"] == "done", job


def ask(url: str, body: object = None) -> Any:  # noqa: ANN401
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 (http://)
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


if __name__ == "__main__":
    main()
