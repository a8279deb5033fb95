"""`tuner serve` and `--server` as their users meet them: real processes, real work."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from api_server import serving as api_serving
from cases import FP8, FP8_RECORDING, RECORDINGS
from servers import free_port
from tiers import only
from typer.testing import CliRunner
from worker_processes import wait_for

from api.keys import check_keys
from api.serve import listen
from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.errors import BadInput
from tuner.files import parse_toml
from tuner.store.keys import KeyStore
from workers.settings import Settings

TUNER = Path(sys.executable).with_name("tuner")
ROOT = Path(__file__).parents[2]
JOB = ("deepseek-r1", "--tp", "32", "--dtype", "int8_w8a8", "--device", "L40S")
PREDICT = (*JOB, "--measure", "predict", "--batch-sizes", "1", "--effort", "quick")
REPLAY = (
    *(FP8.spec(), "--device", "H200", "--measure", f"replay:{FP8_RECORDING.name}"),
    *("--batch-sizes", "2", "--effort", "quick"),
)
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def env(tmp_path, run_folder):
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("TUNER_")},
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(run_folder / "compile-cache"),
        "TUNER_RECORDINGS": str(RECORDINGS),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }


def key_file(env: dict[str, str]) -> Path:
    """Where the command line looks for its key."""
    return Path(env["XDG_CONFIG_HOME"], "tuner", "api-key")


@contextmanager
def serving(env: dict[str, str], *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server's URL and process. Its stdout has what it says to the person who started it."""
    command = [str(TUNER), "serve", "--port", "0", *options]
    process = subprocess.Popen(command, env=env, **PIPES)
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


def said_by(process: subprocess.Popen[str]) -> list[str]:
    """The lines for the person who started it, once it has said all."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("To let other machines in"):
            return lines
    pytest.fail(f"only {lines}")


@dataclass(frozen=True)
class Run:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def tuner(env: dict[str, str], *arguments: str, code: int | None = 0) -> Run:
    """Run a command in this process, with that environment and nothing of this process's.

    It must end with that exit code, unless it is None.
    """
    hidden = dict.fromkeys(os.environ.keys() - env.keys())
    ended = CliRunner().invoke(app, arguments, env={**hidden, **env})
    if not isinstance(ended.exception, SystemExit | None):
        raise ended.exception
    assert code in (None, ended.exit_code), ended.stderr
    return Run(ended.exit_code, ended.stdout, ended.stderr)


def test_a_taken_port_is_told_before_anything_is_done(env, tmp_path):
    """No key is made, no store is opened, and no worker takes a job."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = tuner(env, "serve", "--port", str(port), code=2)
    assert run.stdout == ""
    assert run.stderr == (
        f"tuner: error: port {port} of 127.0.0.1 is taken, perhaps by another `tuner serve`: stop "
        "that, or add --port 0, which takes a free port\n"
    )
    run = tuner(env, "serve", "--port", "0", "--host", "192.0.2.1", code=2)
    assert "192.0.2.1 is no address of this machine: --host 0.0.0.0 serves" in run.stderr
    assert not key_file(env).exists() and not (tmp_path / "tuner.db").exists()


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
def test_a_database_that_is_away_is_no_mistake_of_the_command(env, command):
    """What starts it may try again: 2 says that the command itself is wrong."""
    away = {
        "TUNER_DATABASE_URL": f"postgresql://tuner@127.0.0.1:{free_port()}/tuner",
        "TUNER_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    run = tuner({**env, **away}, *command, code=1)
    assert run.stderr.startswith("tuner: error: cannot use the store postgresql://tuner@127.0.0.1:")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1"])  # noqa: S104
def test_a_server_listens_on_all_addresses_of_its_host(host):
    with ExitStack() as open_ones:
        try:
            found = [open_ones.enter_context(one) for one in listen(host, 0)]
        except BadInput as error:
            assert host == "::1"
            pytest.skip(f"this machine has no IPv6: {error}")
        (port,) = {one.getsockname()[1] for one in found}
        with socket.create_connection((host, port), timeout=30):
            pass
        with pytest.raises(BadInput, match=f"port {port} of {host} is taken"):
            listen(host, port)


def test_a_job_is_posted_followed_done_and_exported(env, tmp_path):
    with serving(env) as (url, process):
        remote = {**env, "TUNER_SERVER": url, "TUNER_DATABASE_URL": "sqlite:////nowhere/x.db"}
        posted = tuner(remote, "jobs", "submit", *PREDICT)
        job_id = posted.stdout.strip()
        followed = tuner(remote, "jobs", "follow", job_id, "--json")
        kinds = [line.split()[1].rstrip(":") for line in followed.stderr.splitlines()]
        assert kinds[:3] == ["submitted", "leased", "running"]
        assert followed.stderr.splitlines()[-2].startswith("trials: ")
        assert kinds[-1] == "done"
        assert json.loads(followed.stdout)["state"] == "done"
        again = json.loads(tuner(remote, "jobs", "submit", *PREDICT, "--json").stdout)
        assert (again["id"], again["created"]) == (job_id, False)
        listed = json.loads(tuner(remote, "jobs", "--state", "done", "--json").stdout)
        assert [job["id"] for job in listed] == [job_id]
        assert listed == [
            json.loads(tuner(env, "jobs", "show", job_id, "--json").stdout)
        ]  # as stored
        path, key = "/v1/exports/L40S.tar?allow_predicted=true", key_file(env).read_text().strip()
        wanted = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"})  # noqa: S310
        with urllib.request.urlopen(wanted) as tar:  # noqa: S310
            (tmp_path / "x.tar").write_bytes(tar.read())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    listing = subprocess.run(["tar", "tf", tmp_path / "x.tar"], capture_output=True, text=True)
    assert "configs/triton_3_6_0/E=257,N=64,device_name=NVIDIA_L40S" in listing.stdout


def test_following_outlives_a_restart_of_the_server(env):
    with serving(env, "--no-worker") as (url, killed):
        job_id = tuner(env, "jobs", "submit", *REPLAY, "--server", url).stdout.strip()
        command = [str(TUNER), "jobs", "follow", job_id, "--server", url]
        follower = subprocess.Popen(command, env=env, **PIPES)
        assert "submitted" in follower.stderr.readline()
        assert "waiting" in follower.stderr.readline()  # there is no worker yet
        killed.kill()
        assert "does not answer" in follower.stderr.readline()
    with serving(env, "--port", url.rpartition(":")[2]):
        table, steps = follower.communicate(timeout=200)
    assert (follower.returncode, "done" in table) == (0, True)
    kinds = [line.split()[1].rstrip(":") for line in steps.splitlines()]
    assert kinds[:2] == ["leased", "running"]  # it went on after the last step that it had
    assert kinds[-1] == "done"


def test_following_gives_up_on_a_server_that_does_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.cli.jobs.LOST_S", 1.0)
    settings = ApiSettings(Settings(f"sqlite:///{tmp_path / 'tuner.db'}"), no_auth=True)
    with ThreadPoolExecutor(1) as pool, api_serving(settings) as server:
        arguments = ["jobs", "follow", server.submit()["id"], "--server", server.url]
        ended = pool.submit(CliRunner().invoke, app, arguments)
        wait_for(lambda: server.app.state.api.streams.open == 1)
        server.stop()
        result = ended.result(60)
    assert result.exit_code == 1
    said = result.stderr.splitlines()
    assert "does not answer" in said[-1] and said[-1].startswith("tuner: error:")
    assert "trying again for 1 s" in said[-2]


def test_the_client_says_what_is_amiss(env):
    made = tuner(env, "admin", "keys", "create", "team", "--scope", "read")
    key = made.stdout.strip()
    assert key.startswith("tuner_") and "not shown again" in made.stderr
    file = key_file(env)
    file.parent.mkdir(parents=True)
    with serving(env, "--no-worker") as (url, _):

        def said(*arguments: str, **more: str) -> tuple[int, str]:
            run = tuner({**env, **more}, *arguments, "--server", url, code=None)
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
        code, text = said("jobs", "submit", *JOB)
        assert code == 2 and "a key of scope submit" in text
        code, text = said("jobs", "show", "0" * 26)
        assert code == 2 and "there is no job" in text
        tuner(env, "admin", "keys", "revoke", "team")
        wait_for(lambda: said("jobs")[0] == 2)
        assert "was revoked" in said("jobs")[1]
    code, text = said("jobs")
    assert code == 1 and "does not answer" in text
    tuner(env, "jobs", "--server", "ftp://x", code=2)


def test_the_first_start_makes_a_key_that_the_command_line_finds(env):
    file = key_file(env)
    with serving(env, "--no-worker") as (url, process):
        said = said_by(process)
        assert (file.stat().st_mode & 0o777, list(file.parent.iterdir())) == (0o600, [file])
        # Without a key, nothing.
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/v1/jobs")  # noqa: S310
        assert f"The service answers on {url} until Ctrl-C stops it." == said[0]
        assert said[1] == f"The store is {env['TUNER_DATABASE_URL'].removeprefix('sqlite:///')}."
        assert said[2] == f"Every request needs a key. The first key, of scope admin, is in {file}."
        serve = "`tuner serve --host 0.0.0.0` behind a proxy with TLS"
        assert said[-1] == f"To let other machines in: stop it and run {serve}."
        for number, line in enumerate(line for line in said if line.startswith("    ")):
            command = line.replace("tuner jobs", f"{TUNER} jobs")
            run = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)
            assert run.returncode == 0, run.stderr
            said_of_none = ('{"jobs":[],"next":null}', "there is no job: `tuner jobs submit")
            assert said_of_none[number] in run.stdout + run.stderr
        assert number == 1
    (key,) = json.loads(tuner(env, "admin", "keys", "list", "--json").stdout)
    assert (key["name"], key["scope"], key["state"]) == ("local", "admin", "valid")
    before = file.read_text()
    with serving(env, "--no-worker") as (url, process):  # again: nothing is made
        said = said_by(process)
        assert said[2] == f"Every request needs a key. The command line's is in {file}."
        tuner(env, "jobs", "--server", url)
    assert file.read_text() == before


@pytest.mark.parametrize("how", only(["usual"], ["usual", "named", "variable"]))
def test_a_key_of_elsewhere_is_left_alone(env, tmp_path, how):
    if how == "variable":
        env["TUNER_API_KEY"] = "of-another-server"
        says = "TUNER_API_KEY is set, and the store has no key: unset it"
    else:
        file = key_file(env) if how == "usual" else tmp_path / "named"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("of-another-server")
        if how == "named":
            env["TUNER_API_KEY_FILE"] = str(file)
        says = f"{file} holds a key that is not in this store: name another file"
    run = tuner(env, "serve", "--port", "0", code=2)
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert says in run.stderr and "`tuner admin keys create NAME --scope admin`" in run.stderr
    if how != "variable":
        assert file.read_text() == "of-another-server"
        assert [path.name for path in file.parent.iterdir() if "api-key-" in path.name] == []
    listed = tuner({**env, "TUNER_API_KEY": ""}, "admin", "keys", "list", "--json")
    assert json.loads(listed.stdout) == []
    # The next step that it names:
    env = {**env, "TUNER_API_KEY": "", "TUNER_API_KEY_FILE": str(tmp_path / "mine")}
    with serving(env, "--no-worker") as (url, _):
        tuner(env, "jobs", "--server", url)


def test_a_key_that_cannot_be_written_is_not_made(env, tmp_path):
    (tmp_path / "config").write_text("a file, not a folder")
    run = tuner(env, "serve", "--port", "0", code=2)
    assert f"cannot write a key to {key_file(env)}" in run.stderr
    assert "name another file in TUNER_API_KEY_FILE" in run.stderr
    assert json.loads(tuner(env, "admin", "keys", "list", "--json").stdout) == []


def test_a_server_says_when_the_command_line_has_no_valid_key(env, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", env["XDG_CONFIG_HOME"])
    tuner(env, "admin", "keys", "create", "team")

    def door() -> str:
        settings = ApiSettings(Settings(env["TUNER_DATABASE_URL"]))
        words = check_keys(settings, "127.0.0.1", env).words
        return words.removeprefix("Every request needs a key")

    add = "`tuner admin keys create NAME --scope admin` makes a key."
    assert door() == f". The command line has none: {add}"
    file = key_file(env)
    file.parent.mkdir(parents=True)
    file.write_text("of-another-server")
    file.chmod(0o644)
    assert f"run `chmod 600 {file}`" in door()
    file.chmod(0o600)
    assert door() == f". The key in {file} is not valid: {add}"
    tuner(env, "admin", "keys", "revoke", "team")
    assert door() == f", and none is valid: {add}"


def test_only_no_auth_opens_the_door_and_only_here(env):
    with serving(env, "--no-worker", "--no-auth") as (url, process):
        said = said_by(process)
        assert said[2] == "Requests from this machine need no key (--no-auth)."
        assert (
            "make a key with `tuner admin keys create NAME --scope admin`, then stop it" in said[-1]
        )
        words = (*JOB, "--family", "fused_moe")
        job_id = tuner(env, "jobs", "submit", *words, "--server", url).stdout.strip()
        ended = tuner(env, "jobs", "cancel", job_id, "--server", url)
        assert ended.stdout == f"{job_id} is cancelled\n"
        tuner(env, "jobs", "follow", job_id, "--server", url, code=1)
        assert not key_file(env).exists()
        with urllib.request.urlopen(f"{url}/v1/jobs") as answer:  # noqa: S310
            assert len(json.load(answer)["jobs"]) == 1
    for options, says in [
        (
            ("--host", "0.0.0.0"),  # noqa: S104
            "make a key first, with `tuner admin keys create NAME --scope admin`",
        ),
        (("--no-auth", "--host", "0.0.0.0"), "--no-auth is for this machine alone"),  # noqa: S104
    ]:
        run = tuner(env, "serve", "--port", "0", *options, code=2)
        assert (run.returncode, run.stderr.count("\n")) == (2, 1)
        assert says in run.stderr
    tuner(env, "admin", "keys", "create", "team")
    run = tuner(env, "serve", "--port", "0", "--no-auth", code=2)
    assert "--no-auth is refused, because the store has" in run.stderr


def test_beyond_loopback_what_it_says_is_in_its_log(env):
    tuner(env, "admin", "keys", "create", "admin", "--scope", "admin")
    command = [str(TUNER), "serve", "--port", "0", "--host", "0.0.0.0", "--no-worker"]  # noqa: S104
    with subprocess.Popen(command, env=env, **PIPES) as process:
        messages = (json.loads(line)["message"] for line in process.stderr)
        said = next(message for message in messages if message.startswith("The store is"))
        process.terminate()
        assert process.communicate(timeout=60)[0] == ""
    assert "Every request needs a key. Jobs wait for processes of `tuner worker`. It speaks" in said
    tls = 'It speaks no TLS: a proxy lets others in, see docs/operations.md, "The door".'
    assert said.endswith(tls)


DRIVER = """
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(index): return f"GPU-{index}"
def nvmlDeviceGetName(index): return "NVIDIA L40S"
"""


@pytest.mark.parametrize("torch", only([True], [True, False]))
def test_on_a_gpu_host_it_says_what_it_measures_on(env, tmp_path, torch):
    (tmp_path / "pynvml.py").write_text(DRIVER)
    hidden = "import sys\nsys.modules['torch'] = None\n"
    (tmp_path / "sitecustomize.py").write_text("" if torch else hidden)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env.get("PYTHONPATH", "")])
    with serving(env) as (_, process):
        said = said_by(process)[3]
    others = "Replays and predictions are done for every GPU."
    if torch:
        assert said == f"Jobs are measured on NVIDIA_L40S. {others}"
    else:
        assert said.startswith("Nothing is measured on NVIDIA_L40S, because torch is missing: ")


def test_the_api_finds_gpus_with_its_own_requirements():
    own = parse_toml((ROOT / "pyproject.toml").read_text(), "pyproject.toml", BadInput)
    for extra in ("api", "service"):
        assert "nvidia-ml-py>=12" in own["project"]["optional-dependencies"][extra]


def test_keys_are_listed_without_themselves(env, tmp_path):
    token = tmp_path / "token"
    token.write_text("k" * 43 + "\n")
    run = tuner(
        env, "admin", "keys", "create", "admin", "--scope", "admin", "--token-file", str(token)
    )
    assert (run.returncode, run.stdout) == (0, "")
    made = tuner(
        env, "admin", "keys", "create", "ci", "--scope", "submit,urgent", "--expires", "2099-01-31"
    )
    admin, ci = json.loads(tuner(env, "admin", "keys", "list", "--json").stdout)
    assert (admin["name"], admin["scope"], admin["revoked_at"]) == ("admin", "admin", None)
    assert (ci["scope"], ci["urgent"], ci["state"]) == ("submit", True, "valid")
    assert ci["expires_at"] == "2099-01-31T00:00:00+00:00"
    with KeyStore.open(env["TUNER_DATABASE_URL"]) as keys:
        keys.find(made.stdout.strip())  # as a server does
    table = tuner(env, "admin", "keys", "list").stdout
    assert "kkk" not in table
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    row = rf"^ci +submit,urgent  valid  {time}  {time}  2099-01-31 00:00:00"
    assert re.search(row, table, re.M)
    near = tuner(env, "admin", "keys", "revoke", "admn", code=2)
    assert "did you mean 'admin'?" in near.stderr
    last = tuner(env, "admin", "keys", "revoke", "admin", code=2)
    assert "or add --force" in last.stderr
    tuner(env, "admin", "keys", "revoke", "admin", "--force")
    for wrong, says in [
        (("--scope", "foo"), "the scopes are read, submit, admin, and urgent beside submit"),
        (("--expires", "soon"), "after 1d to 3650d"),
    ]:
        refused = tuner(env, "admin", "keys", "create", "x", *wrong, code=2)
        assert says in refused.stderr


def test_a_key_is_ensured_from_a_file(env, tmp_path):
    token = tmp_path / "token"
    ensure = ("admin", "keys", "ensure", "admin", "--scope", "admin", "--token-file", str(token))

    def said(key: str) -> tuple[int, str]:
        token.write_text(key + "\n")
        run = tuner(env, *ensure, code=None)
        assert run.stdout == ""
        return run.returncode, run.stderr.strip()

    assert said("a" * 40) == (0, "the key of admin is stored")
    assert said("a" * 40) == (0, "the key of admin is stored already")
    code, text = said("b" * 40)
    assert code == 0 and "the old key is refused from now on" in text
    tuner(env, "admin", "keys", "revoke", "admin", "--force")
    code, text = said("b" * 40)
    assert code == 2 and "make a new key" in text and "rotate admin_key" in text
    assert said("c" * 40) == (0, "admin, whose key was revoked, has a new key")
    assert said("short")[0] == 2
