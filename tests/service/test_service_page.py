"""docs/service.md's first hour, word for word but for the installation and the port.

On each commit, its jobs try less: `quick` says how. At night, they are the page's own.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from test_serve import DRIVER, TUNER, env, said_by, serving  # noqa: F401 (env is a fixture)

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


@pytest.mark.parametrize(
    "gpu", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["no GPU", "GPU"]
)
def test_the_first_hour(env: dict[str, str], tmp_path: Path, gpu: bool) -> None:  # noqa: F811
    del env["XDG_CONFIG_HOME"]
    env["HOME"] = str(tmp_path)
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "pynvml.py").write_text(DRIVER if gpu else "raise ImportError('none')")
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "driver"), env.get("PYTHONPATH", "")])
    page = PAGE.read_text()
    install, *steps = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert install.splitlines()[-1] == "tuner serve"
    script = "\necho; echo =====\n".join(["set -eu", *steps])
    with serving(env) as (url, process):
        check_greeting(said_by(process), page, url, tmp_path, gpu)
        script = script.replace("http://127.0.0.1:8765", url)
        if not gpu:
            script = quick(script)
        env["PATH"] = f"{TUNER.parent}:{env['PATH']}"
        run = subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True
        )
    assert run.returncode == 0, run.stderr
    said = run.stdout.split("=====")[1:]
    ready, posted, events, files, watch, mistake, cli, results, keys, night = said
    assert '"status":"ok"' in ready and '{"jobs":[],"next":null}' in ready
    assert "HTTP/1.1 202 Accepted" in posted and '"created":true' in posted
    assert events.index("event: submitted") < events.index("event: trials")
    assert events.index("event: trials") < events.index("event: done")
    assert '"status":409' in files and "pass allow_predicted=true" in files
    assert "device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down.json" in files
    assert "4 watched, 4 to do" in watch and watch.count("missing") == 4
    assert "did you mean 'deepseek-r1'?" in mistake
    job = "NVIDIA_H20  mixtral-8x7b" if gpu else "NVIDIA_L40S  deepseek-r1"
    assert f"done   {job}" in cli
    assert job.partition(" ")[0] in results and "of the engine's own files" in results + run.stderr
    assert '"status":401' in keys and '"state":"done"' in keys
    assert re.search(r"^local  admin   valid", keys, re.M)
    assert re.search(r"^ci     submit  valid", keys, re.M)
    assert "mixtral-8x7b" in night and "to do" in night


def quick(script: str) -> str:
    """The same with less work: both jobs try few configurations, of the same kernels."""
    for plain, other in (
        (
            '"measure": "predict", "batch_sizes": [1, 64]',
            '"measure": "predict", "effort": "quick", "batch_sizes": [1]',
        ),
        (
            "mixtral-8x7b --tp 8 --device H20",
            "deepseek-r1 --tp 32 --dtype int8_w8a8 --device L40S --effort quick",
        ),
        ("--batch-sizes 1 > job.txt", "--batch-sizes 64 > job.txt"),
        ("tuner export --device H20", "tuner export --device L40S"),
    ):
        assert script.count(plain) == 1
        script = script.replace(plain, other)
    return script


def check_greeting(said: list[str], page: str, url: str, home: Path, gpu: bool) -> None:
    """What a start says is what the page shows, but for the store's place and a GPU."""
    block = re.search(r"```\n(The service answers on .*?)\n```", page, re.DOTALL)
    assert block
    shown = block[1].replace("http://127.0.0.1:8765", url).replace("/home/me", str(home))
    lines = shown.splitlines()
    lines[1] = said[1]
    at = next(n for n, line in enumerate(lines) if "/login?once=" in line)
    link = re.escape(f"  {url}/login?once=") + "[A-Za-z0-9_-]{43}"
    assert re.fullmatch(link, lines[at]) and re.fullmatch(link, said[at])
    lines[at] = said[at]  # its secret
    if gpu:
        assert "NVIDIA_L40S" in said[3]
        lines[3] = said[3]
    assert said == lines
