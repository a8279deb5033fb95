"""`tuner serve` and `--server` as their users meet them: real processes, real work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_server import serving as api_serving
from typer.testing import CliRunner
from worker_processes import wait_for

from api.settings import ApiSettings
from tuner.cli import app
from workers.settings import Settings

TUNER = Path(sys.executable).with_name("tuner")
JOB = ("deepseek-r1", "--tp", "32", "--dtype", "int8_w8a8", "--device", "L40S")
PREDICT = (*JOB, "--measure", "predict", "--batch-sizes", "1,64")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'tuner.db'}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


@contextmanager
def serving(env: dict[str, str], *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's URL and process."""
    command = [str(TUNER), "serve", "--port", "0", *options]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        for line in process.stderr:
            message = json.loads(line)["message"]  # every line of the log is an object
            if message.startswith("Uvicorn running on "):
                yield message.split()[3], process
                break
        else:
            pytest.fail("the server did not start")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def tuner(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(TUNER), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)


def test_a_job_is_posted_followed_done_and_exported(env: dict[str, str], tmp_path: Path) -> None:
    with serving(env) as (url, process):
        remote = {**env, "TUNER_SERVER": url, "TUNER_DATABASE_URL": "sqlite:////nowhere/x.db"}
        posted = tuner(remote, "submit", *PREDICT)
        assert posted.returncode == 0, posted.stderr
        job_id = posted.stdout.strip()
        followed = tuner(remote, "job", job_id, "--follow", "--json")
        assert followed.returncode == 0, followed.stderr
        kinds = [line.split()[1].rstrip(":") for line in followed.stderr.splitlines()]
        assert kinds[:3] == ["submitted", "leased", "running"]
        assert (kinds[-2], kinds[-1]) == ("trials", "done")
        assert json.loads(followed.stdout)["state"] == "done"
        again = tuner(remote, "submit", *PREDICT, "--json")
        assert (json.loads(again.stdout)["id"], json.loads(again.stdout)["created"]) == (
            job_id,
            False,
        )
        listed = json.loads(tuner(remote, "jobs", "--state", "done", "--json").stdout)
        assert [job["id"] for job in listed] == [job_id]
        assert listed == [json.loads(tuner(env, "job", job_id, "--json").stdout)]  # as stored
        with urllib.request.urlopen(f"{url}/v1/exports/L40S.tar?allow_predicted=true") as tar:  # noqa: S310
            (tmp_path / "x.tar").write_bytes(tar.read())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    listing = subprocess.run(["tar", "tf", tmp_path / "x.tar"], capture_output=True, text=True)
    assert "configs/triton_3_6_0/E=257,N=64,device_name=NVIDIA_L40S" in listing.stdout


def test_a_job_is_cancelled_over_http(env: dict[str, str]) -> None:
    with serving(env, "--no-worker") as (url, _):
        job_id = tuner(env, "submit", *JOB, "--server", url).stdout.strip()
        ended = tuner(env, "cancel", job_id, "--server", url)
        assert ended.stdout == f"{job_id} is cancelled\n"
        assert tuner(env, "job", job_id, "--follow", "--server", url).returncode == 1


def test_following_outlives_a_restart_of_the_server(env: dict[str, str]) -> None:
    with serving(env, "--no-worker") as (url, killed):
        job_id = tuner(env, "submit", *PREDICT, "--server", url).stdout.strip()
        command = [str(TUNER), "job", job_id, "--follow", "--server", url]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        follower = subprocess.Popen(command, env=env, **pipes)
        assert "submitted" in follower.stderr.readline()
        killed.kill()
        assert "does not answer" in follower.stderr.readline()
    with serving(env, "--port", url.rpartition(":")[2]):
        table, steps = follower.communicate(timeout=200)
    assert (follower.returncode, "done" in table) == (0, True)
    kinds = [line.split()[1].rstrip(":") for line in steps.splitlines()]
    assert kinds[:2] == ["leased", "running"]  # it went on after the last step that it had
    assert kinds[-1] == "done"


def test_following_gives_up_on_a_server_that_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.cli.jobs.LOST_S", 1.0)
    with (
        ThreadPoolExecutor(1) as pool,
        api_serving(ApiSettings(Settings(f"sqlite:///{tmp_path / 'tuner.db'}"))) as server,
    ):
        arguments = ["job", server.submit()["id"], "--follow", "--server", server.url]
        ended = pool.submit(CliRunner().invoke, app, arguments)
        wait_for(lambda: server.app.state.api.streams.open == 1)
        server.stop()
        result = ended.result(60)
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert "does not answer" in said[-1] and said[-1].startswith("tuner: error:")
    assert "trying again for 1 s" in said[-2]


def test_the_client_says_what_is_amiss(env: dict[str, str], tmp_path: Path) -> None:
    made = tuner(env, "keys", "add", "team", "--scope", "read")
    key = made.stdout.strip()
    assert key.startswith("tuner_") and "not shown again" in made.stderr
    file = tmp_path / "config" / "tuner" / "api-key"
    file.parent.mkdir(parents=True)
    with serving(env, "--no-worker") as (url, _):

        def said(*arguments: str, **more: str) -> tuple[int, str]:
            run = tuner({**env, **more}, *arguments, "--server", url)
            return run.returncode, run.stderr

        code, text = said("jobs")
        assert code == 2 and "set TUNER_API_KEY" in text
        assert said("jobs", TUNER_API_KEY=key)[0] == 0
        file.write_text(key)
        file.chmod(0o644)
        code, text = said("jobs")
        assert code == 2 and f"run `chmod 600 {file}`" in text
        file.chmod(0o600)
        assert said("jobs")[0] == 0
        code, text = said("submit", *JOB)
        assert code == 2 and "a key of scope submit" in text
        code, text = said("job", "0" * 26)
        assert code == 2 and "there is no job" in text
        assert tuner(env, "keys", "revoke", "team").returncode == 0
        code, text = said("jobs")
        assert code == 2 and "was revoked" in text
    code, text = said("jobs")
    assert code == 1 and "does not answer" in text
    assert tuner(env, "jobs", "--server", "ftp://x").returncode == 2


def test_no_door_is_open_to_others_without_a_key(env: dict[str, str]) -> None:
    run = tuner(env, "serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert run.returncode == 2
    assert "make a key first, with `tuner keys add NAME --scope admin`" in run.stderr
    assert run.stderr.count("\n") == 1


def test_keys_are_listed_without_themselves(env: dict[str, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("k" * 43 + "\n")
    run = tuner(env, "keys", "add", "admin", "--scope", "admin", "--token-file", str(token))
    assert (run.returncode, run.stdout) == (0, "")
    (listed,) = json.loads(tuner(env, "keys", "list", "--json").stdout)
    assert (listed["name"], listed["scope"], listed["revoked_at"]) == ("admin", "admin", None)
    table = tuner(env, "keys", "list").stdout
    assert "admin" in table and "kkk" not in table
    near = tuner(env, "keys", "revoke", "admn")
    assert near.returncode == 2 and "did you mean 'admin'?" in near.stderr
    last = tuner(env, "keys", "revoke", "admin")
    assert last.returncode == 2 and "or add --force" in last.stderr
    assert tuner(env, "keys", "revoke", "admin", "--force").returncode == 0
