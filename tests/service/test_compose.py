"""docker-compose.yml without Docker: its schema, its promises, and its commands as processes."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import JOB, Server, eventually
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from redis import Redis
from redis.exceptions import AuthenticationError
from scraping import scrape_port
from servers import free_ports, redis_answers, redis_binary, started_redis
from worker_processes import wait_for as wait_until

from api.settings import read_api_settings
from tuner.devices.here import VISIBLE
from tuner.engines.engine import find_engine
from tuner.errors import BadInput
from tuner.files import parse_toml
from tuner.jobs.client import api_key
from tuner.measure import gpu_lock

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]


@pytest.fixture
def secrets(tmp_path):
    folder = tmp_path / "secrets"
    subprocess.run(["sh", ROOT / "docker" / "make_secrets.sh", folder], check=True)
    return folder


def test_the_command_line_takes_the_key_as_the_containers_do(secrets):
    """As docs/operations.md says it; a container's user could not read it with the mode 0600."""
    text = (ROOT / "docs" / "operations.md").read_text()
    assert "TUNER_API_KEY_FILE=secrets/admin_key" in text
    file = secrets / "admin_key"
    assert api_key({"TUNER_API_KEY_FILE": str(file)}) == file.read_text()
    secrets.chmod(0o755)
    with pytest.raises(BadInput, match="others may read the key"):
        api_key({"TUNER_API_KEY_FILE": str(file)})


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.worker.yml"])
def test_it_is_a_compose_file(name):
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*command, ROOT / name], check=True)


def test_a_worker_alone_is_the_service_s_worker_but_for_what_it_lacks_there():
    text = (ROOT / "docker-compose.worker.yml").read_text()
    alone, ours = yaml.safe_load(text)["services"]["worker"], {**SERVICES["worker"]}
    for name in ("networks", "depends_on", "configs"):
        del ours[name]
    for one in (alone, ours):
        one["environment"] = {
            name: value
            for name, value in one["environment"].items()
            if name not in ("TUNER_RECORDINGS", "TUNER_NIGHTLY", "TUNER_BROKER_CA")
            and not name.startswith("TUNER_METRICS")
        }
        one["volumes"] = [mount for mount in one["volumes"] if "recordings" not in mount]
        one["secrets"] = [name for name in one["secrets"] if name != "tls_ca"]
    assert alone == ours


def test_each_log_has_an_end():
    for name, service in SERVICES.items():
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_healthy_or_done_and_nobody_is_root(name):
    service = SERVICES[name]
    assert service["user"] in ("10001", "postgres", "redis", "65534", "472", "99")
    once = service["restart"] == "no"
    assert once or "healthcheck" in service
    for other, how in service.get("depends_on", {}).items():
        wanted = "service_completed_successfully" if other == "migrate" else "service_healthy"
        assert how == {"condition": wanted}


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_a_value(name, secrets):
    service = SERVICES[name]
    text = yaml.safe_dump(service)
    mounted = set(re.findall(r"/run/secrets/(\w+)", text))
    assert mounted <= set(service.get("secrets", ()))
    assert {secrets / one for one in mounted} <= set(secrets.iterdir())
    for variable, value in service.get("environment", {}).items():
        secret = re.search("PASSWORD|KEY|URL", variable)
        assert not secret or (variable.endswith("_FILE") and value.startswith("/run/secrets/"))


def test_every_variable_is_one_that_is_read():
    class Asked(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            self[name] = ""
            return default

    asked = Asked()
    read_api_settings(asked)
    known = {*asked, gpu_lock.VARIABLE, VISIBLE}
    for name in OURS:
        assert set(SERVICES[name]["environment"]) <= known


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_is_hardened_whoever_made_its_image(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] and service["mem_limit"] and service["networks"]
    assert service["read_only"] or name == "worker"
    image = service["image"]
    assert ("build" in service) or re.fullmatch(r"[\w./-]+:v?[\w.-]+@sha256:[0-9a-f]{64}", image)


def test_each_network_has_who_needs_it_and_the_store_s_lets_nothing_out():
    members: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for network in service["networks"]:
            members.setdefault(network, set()).add(name)
    assert set(members) == set(COMPOSE["networks"])
    assert COMPOSE["networks"]["store"] == {"internal": True}
    assert members["store"].isdisjoint({"door", "prometheus", "grafana"})
    assert members["door"] == {"api", "door"}
    assert members["hosts"] == {"hosts"}
    assert members["dashboard"] == {"prometheus", "grafana"}


def test_redis_gets_its_password_by_no_argument(secrets):
    """The service's own command starts a Redis, which the arguments of no process give away."""
    password = (secrets / "redis_password").read_text()
    port = free_ports(1)
    command = [one.replace("$$", "$") for one in SERVICES["redis"]["command"]]
    command[-1] = command[-1].replace("/run/secrets", str(secrets))
    command[-1] = command[-1].replace("redis-server", redis_binary())
    command[-1] = command[-1].replace('save ""', f'save ""\nport {port}\nbind 127.0.0.1', 1)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: redis_answers(port))
            with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
                stranger.ping()
            with Redis(port=port, password=password) as client:
                assert client.ping()
            arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert b"redis-server" in arguments and password.encode() not in arguments
        finally:
            process.terminate()


def test_the_locks_hold_what_the_images_install():
    text = (ROOT / "pyproject.toml").read_bytes()
    project = parse_toml(text, "pyproject.toml", BadInput)["project"]
    for lock, own in (("api", "api"), ("worker-cpu", "compile")):
        text = (ROOT / "docker" / f"{lock}.lock").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE))
        assert text.count("--hash=sha256:") >= len(pinned) > 40
        optional = [
            project["optional-dependencies"][extra] for extra in (own, "postgres", "service")
        ]
        for one in map(Requirement, chain(project["dependencies"], *optional)):
            if one.marker is None or one.marker.evaluate({"python_version": "3.12"}):
                assert one.specifier.contains(pinned[canonicalize_name(one.name)]), (lock, one)


def test_only_the_worker_reserves_gpus():
    reserving = [name for name, service in SERVICES.items() if "deploy" in service]
    assert reserving == ["worker"]
    (device,) = SERVICES["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_containers_that_share_a_gpu_share_the_folder_of_its_lock():
    """Each container has a /tmp of its own, and each replica of a worker is a container."""
    worker = SERVICES["worker"]
    folder = worker["environment"][gpu_lock.VARIABLE]
    mounts = dict(reversed(mount.split(":")[:2]) for mount in worker["volumes"])
    assert mounts[folder] in COMPOSE["volumes"]
    text = (ROOT / "docker" / "worker.Dockerfile").read_text()
    (made,) = re.findall(rf"^RUN install (.+) {folder}$", text, re.MULTILINE)
    assert made.split() == ["--directory", "--owner", "tuner", "--mode", "1777"]
    assert text.index(made) < text.index("USER 10001")


@pytest.mark.parametrize("name", ["api", "worker"])
def test_the_dockerfiles_copy_what_is_there(name):
    text = (ROOT / "docker" / f"{name}.Dockerfile").read_text()
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert copied <= kept  # what .dockerignore leaves out cannot be copied
    assert re.findall(r"^USER (\w+)$", text, re.MULTILINE)[-1] == "10001"


@pytest.mark.parametrize("broken", [False, True])
def test_the_image_has_the_engine_releases_that_it_is_built_for(tmp_path, broken):
    """A release that cannot be added ends the build."""
    text = (ROOT / "docker" / "api.Dockerfile").read_text()
    (release,) = re.findall(r"^ARG ENGINE=(\S+)$", text, re.MULTILINE)
    assert find_engine(release).version == release.partition("==")[2]
    (loop,) = re.findall(r"^RUN (for (?:.*\\\n)+.*)$", text, re.MULTILINE)
    tuner = tmp_path / "tuner"
    tuner.write_text(f'#!/bin/sh\necho "$@"\n! {str(broken).lower()}\n')
    tuner.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", loop.replace("/opt/tuner/bin/tuner", str(tuner))],
        env={"ENGINE": f"{release} vllm==0.33.0", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    added = [release] if broken else [release, "vllm==0.33.0"]
    assert done.stdout == "".join(f"list engines --no-triton --add {one}\n" for one in added)
    assert done.returncode == broken


def test_secrets_are_made_once_and_are_the_owners(secrets):
    before = {path: path.read_text() for path in secrets.iterdir()}
    subprocess.run(["sh", ROOT / "docker" / "make_secrets.sh", secrets], check=True)
    assert before == {path: path.read_text() for path in secrets.iterdir()}
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert len(set(before.values())) == 5
    assert len(before[secrets / "admin_key"]) > 64


class Processes:
    """The compose file's commands, with its secrets and servers of this machine."""

    def __init__(
        self, secrets: Path, folder: Path, stack: ExitStack, cache: Path | None = None
    ) -> None:
        self._secrets, self._folder, self._stack = secrets, folder, stack
        self._cache = cache or folder / "cache"
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.metrics = {"beat": free_ports(1), "worker-cpu": free_ports(3)}

    def run(self, name: str) -> str:
        """To its end; what it says."""
        run = subprocess.run(
            self._command(name),
            env=self._environ(name),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        return run.stderr

    def start(self, name: str) -> Path:
        """Its log; it is stopped with the test."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            command, environ = self._command(name), self._environ(name)
            process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
        self._started[name] = process
        self._stack.callback(process.wait, 90)
        self._stack.callback(process.terminate)
        return log

    def stop(self, name: str) -> None:
        self._started[name].terminate()
        assert self._started[name].wait(90) == 0

    def is_healthy(self, name: str, port: int = 0) -> bool:
        """What the service's health check says."""
        how, *test = SERVICES[name]["healthcheck"]["test"]
        if how == "CMD-SHELL":
            test = ["sh", "-c", *test]
        test[-1] = test[-1].replace("$$", "$").replace(":8765", f":{port}")
        environ = {**self._environ(name), "HOSTNAME": socket.gethostname()}
        return subprocess.run(test, env=environ, capture_output=True, timeout=60).returncode == 0

    def _command(self, name: str) -> list[str]:
        return [self._here(word) for word in SERVICES[name]["command"]]

    def _environ(self, name: str) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("TUNER_")}
        ours["PATH"] = f"{BIN}{os.pathsep}{ours['PATH']}"
        ours["TUNER_CACHE_DIR"] = str(self._cache)
        wanted: Mapping[str, str] = SERVICES[name]["environment"]
        # In containers, all can have the same port.
        port = {"TUNER_METRICS_PORT": str(self.metrics[name])} if name in self.metrics else {}
        return {**ours, **{k: self._here(v) for k, v in wanted.items()}, **port}

    def _here(self, word: str) -> str:
        port = {"8765": "0"}.get(word, word)
        nightly = port.replace("/etc/tuner/nightly.toml", str(ROOT / "nightly.toml"))
        return nightly.replace("/run/secrets", str(self._secrets)).replace(
            "/tmp/beat",  # noqa: S108
            str(self._folder / "beat"),
        )


@pytest.fixture
def processes(secrets, tmp_path, empty_postgres_url, run_folder):
    password = (secrets / "redis_password").read_text()
    with started_redis(password) as redis, ExitStack() as stack:
        for name, url in (("database_url", empty_postgres_url), ("broker_url", redis.url)):
            (secrets / name).chmod(0o600)
            (secrets / name).write_text(url)
        yield Processes(secrets, tmp_path, stack, run_folder / "compile-cache")


def test_its_commands_make_a_service(processes, secrets):
    assert "the key of admin is stored\n" in processes.run("migrate")
    assert "the key of admin is stored already\n" in processes.run("migrate")  # at the next `up`
    api = processes.start("api")
    beat = processes.start("beat")
    worker = processes.start("worker-cpu")
    port = int(wait_for(api, r"Uvicorn running on http://0\.0\.0\.0:(\d+)"))
    server = Server(port, None, (secrets / "admin_key").read_text())
    assert server.call("GET", "/v1/jobs", key="x").status == 401
    job = {**JOB, "measure": "predict", "batch_sizes": [1], "effort": "quick"}
    answer = server.call("POST", "/v1/jobs", job)
    assert answer.status == 202
    followed = server.call("GET", f"{answer.headers['location']}/events")
    assert followed.body.decode().count("event: done") == 1
    wait_for(beat, r"(beat: Starting)")
    assert processes.is_healthy("api", port) and not processes.is_healthy("api", port + 1)
    assert processes.is_healthy("worker-cpu")
    for name in ("beat", "worker-cpu"):
        assert scrape_port(processes.metrics[name])
    shown = wait_until(lambda: scrape_port(processes.metrics["beat"]))
    assert shown.value("tuner_broker_up") == 1
    assert {"tuner_build_info", "process_start_time_seconds"} <= shown.families.keys()
    for log in (api, beat, worker):
        whole, _, _ = log.read_text().rpartition("\n")
        assert all(json.loads(line)["message"] for line in whole.splitlines())


def wait_for(log: Path, pattern: str) -> str:
    """The pattern's group, once the log has it."""
    for _ in range(600):
        if found := re.search(pattern, log.read_text()):
            return found[1]
        threading.Event().wait(0.1)
    raise AssertionError(log.read_text())
