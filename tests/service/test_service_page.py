"""docs/service.md's first hour, word for word but for the installation and the port."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from test_serve import TUNER, env, serving  # noqa: F401 (env is a fixture)

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def test_the_first_hour(env: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    install, *steps = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert install.splitlines()[-1] == "tuner serve"
    script = "\necho; echo =====\n".join(["set -eu", *steps])
    with serving(env) as (url, _):
        script = script.replace("http://127.0.0.1:8765", url)
        env["PATH"] = f"{TUNER.parent}:{env['PATH']}"
        run = subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True
        )
    assert run.returncode == 0, run.stderr
    ready, posted, events, files, night, mistake, keys, cli = run.stdout.split("=====")[1:]
    assert '"status":"ok"' in ready
    assert "HTTP/1.1 202 Accepted" in posted and '"created":true' in posted
    assert events.index("event: submitted") < events.index("event: trials")
    assert events.index("event: trials") < events.index("event: done")
    assert '"status":409' in files and "pass allow_predicted=true" in files
    assert "device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down.json" in files
    assert "4 watched, 4 to do" in night and night.count("missing") == 4
    assert "did you mean 'deepseek-r1'?" in mistake
    assert '"status":401' in keys and '"state":"done"' in keys
    assert "done   NVIDIA_H100_80GB_HBM3  mixtral-8x7b" in cli
