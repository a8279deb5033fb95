"""The running API against its own OpenAPI schema: Schemathesis finds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from api_server import serving, work

from api.settings import ApiSettings
from tuner.store import Leases
from tuner.store.keys import Scope
from workers.settings import Settings

HERE = Path(__file__).parent
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EXAMPLES = 15  # an operation and phase


def test_schemathesis_finds_nothing(store_url: str, tmp_path: Path) -> None:
    settings = ApiSettings(Settings(store_url), rate=(), submit_rate=(), stream_s=1)
    with serving(settings) as server:
        server.key = server.app.state.api.keys.add("fuzz", Scope.ADMIN)
        server.submit()
        with Leases.open(store_url) as leases:
            work(leases)
        command = [
            *(str(SCHEMATHESIS), "--config-file", str(HERE / "schemathesis.toml"), "--no-color"),
            *(
                "run",
                f"{server.url}/openapi.json",
                "--header",
                f"Authorization: Bearer {server.key}",
            ),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--continue-on-failure"),
        ]
        environ = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "schemathesis_checks",
            "PYTHONPATH": str(HERE),
        }
        run = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=250
        )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    cases = re.search(r"(\d+) generated, (\d+) passed", run.stdout)
    assert cases and int(cases[1]) > 800, run.stdout[-2000:]
