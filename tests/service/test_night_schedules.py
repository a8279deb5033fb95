"""What starts a night without beat, and exit codes: docs/operations.md, "Nights without beat"."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from api_server import serving
from cases import ROOT
from servers import free_port

from api.settings import ApiSettings
from tuner.store.api_key import Scope
from workers.settings import Settings

DOCKER = ROOT / "docker"
TUNER = Path(sys.executable).parent / "tuner"
SERVER = "https://tuner.example"


@pytest.fixture
def server(tmp_path):
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with serving(ApiSettings(Settings(url))) as running:
        running.key = running.app.state.api.keys.add("night", Scope.ADMIN)
        yield running


@pytest.fixture
def key_file(server, tmp_path):
    path = tmp_path / "night.key"
    path.touch(mode=0o600)
    path.write_text(server.key)
    return path


def night(command: str, url: str, key_file: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of a schedule as cron would: by sh, with few variables."""
    env = {"PATH": os.defpath, "HOME": str(key_file.parent)}
    env |= {"TUNER_SERVER": url, "TUNER_API_KEY_FILE": str(key_file)}
    here = command.replace("/opt/tuner/venv/bin/tuner", str(TUNER))
    return subprocess.run(
        ["/bin/sh", "-c", here], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def cron_command() -> str:
    text = (DOCKER / "night" / "tuner-night.cron").read_text()
    *variables, line = (one for one in text.splitlines() if not one.startswith("#"))
    assert [one.partition("=")[0] for one in variables] == ["TUNER_SERVER", "TUNER_API_KEY_FILE"]
    *when, user, command = line.split(None, 6)
    assert (when, user) == (["5", "1-6", "*", "*", "*"], "tuner")
    return command


def test_exit_codes_tell_an_impossible_watch_from_a_server_that_is_away(server, key_file):
    command = cron_command()
    watch = {"models": ["deepseek-r1"], "devices": ["L40S"], "tp": [8], "measure": "predict"}
    server.call("POST", "/v1/watches", watch)
    done = night(command, server.url, key_file)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert night(command, server.url, key_file).returncode == 0  # it was done
    server.call("POST", "/v1/watches", {**watch, "tp": [7]})
    run = command.partition(" >")[0]
    impossible = night(f"{run} --force", server.url, key_file)
    assert impossible.returncode == 1
    assert "tp=7" in impossible.stdout
    mailed = night(command.replace(run, f"{run} --force"), server.url, key_file)
    assert mailed.stdout == "exit code 1: see tuner nightly run --last\n"
    away = night(run, f"http://127.0.0.1:{free_port()}", key_file)
    assert away.returncode == 75
    assert "does not answer" in away.stderr
    key_file.write_text("tuner_" + "0" * 64)
    assert night(run, server.url, key_file).returncode == 2


def test_a_store_that_is_away_is_told_too(tmp_path):
    env = {"PATH": os.defpath, "HOME": str(tmp_path)}
    env["TUNER_DATABASE_URL"] = f"postgresql://nobody:none@127.0.0.1:{free_port()}/none"
    done = subprocess.run(
        [TUNER, "nightly", "run"], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 75, done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_the_units_are_good(tmp_path):
    names = sorted(path.name for path in (DOCKER / "systemd").iterdir())
    for name in names:
        text = (DOCKER / "systemd" / name).read_text()
        text = text.replace("/opt/tuner/venv/bin/", f"{TUNER.parent}/")
        (tmp_path / name).write_text(text.replace("User=tuner", f"User={getpass.getuser()}"))
    paths = [tmp_path / name for name in names]
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False
    )
    mine = [line for line in done.stderr.splitlines() if "tuner-" in line]
    assert (done.returncode, mine) == (0, []), done.stderr
    calendar = re.search(r"OnCalendar=(.*)", (tmp_path / "tuner-night.timer").read_text())
    assert calendar
    subprocess.run(["systemd-analyze", "calendar", calendar[1]], check=True, capture_output=True)


def test_the_timer_s_night_reads_the_key_as_cron_s_does():
    """The copy that systemd makes of a credential has the mode 0440: others might read it."""
    unit = (DOCKER / "systemd" / "tuner-night.service").read_text()
    cron = (DOCKER / "night" / "tuner-night.cron").read_text()
    for name in ("TUNER_SERVER", "TUNER_API_KEY_FILE"):
        (value,) = re.findall(f"^{name}=(.*)$", cron, re.MULTILINE)
        assert f"\nEnvironment={name}={value}\n" in unit
    assert "LoadCredential" not in unit


def test_the_cron_job_is_good():
    job = yaml.safe_load((DOCKER / "night" / "cronjob.yaml").read_text())
    assert job["kind"] == "CronJob"
    spec = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert pod["restartPolicy"] == "Never"  # as a podFailurePolicy needs it
    assert rule["onExitCodes"] == {"operator": "In", "values": [1, 2]}
    (container,) = pod["containers"]
    assert container["command"] == ["tuner", "nightly", "run"]
    assert [one["name"] for one in container["env"]] == ["TUNER_SERVER", "TUNER_API_KEY"]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert container["image"] in str(services)
