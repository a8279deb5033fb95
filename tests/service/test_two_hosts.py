"""Workers of two hosts on one store: what a second GPU host is given, and a host that dies at work.

These are the processes of docs/operations.md, "A second GPU host": PostgreSQL and Redis are reached
by TLS alone, through docker/haproxy-hosts.cfg, with the secrets of docker/make_secrets.sh.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import trustme
from redis import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as Refused
from servers import free_ports, started_redis
from sqlalchemy import make_url
from worker_processes import celery_worker, other_host, tuning_child, wait_for

from tuner.jobs.job import JobState
from tuner.jobs.queue import JobQuery
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.nights import NightStore
from tuner.store.workers import WorkerStore
from workers.nightly import SCHEDULE, run_nightly
from workers.settings import Settings

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "docker" / "haproxy-hosts.cfg").read_text()
PROBLEM = "fused_moe:E=8,N={n},K=512,top_k=2,dtype=bfloat16"
HOSTS = {"a": ("NVIDIA_H100_80GB_HBM3", "0.5.16"), "b": ("NVIDIA_L40S", "0.5.12")}
SIZES = (256, 384, 512)
NIGHT_OF = date(2026, 11, 28)
NIGHT = """
[[watch]]
models = [{models}]
devices = ["{device}"]
engine = "sglang=={version}"
measure = "predict"
effort = "quick"
batch_sizes = [1]
"""


@pytest.fixture
def by_tls(tmp_path, empty_postgres_url):
    """The settings of a worker on another host."""
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    folder, authority = tmp_path / "secrets", trustme.CA()
    make = ["sh", str(ROOT / "docker" / "make_secrets.sh")]
    subprocess.run([*make, folder], check=True)
    authority.cert_pem.write_to_path(folder / "tls_ca")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "tls_certificate")
    subprocess.run([*make, "host", "127.0.0.1", folder], check=True)
    near, behind = free_ports(2), postgres_address(empty_postgres_url)
    with started_redis((folder / "redis_password").read_text()) as redis:
        text = CONFIG.replace("/run/secrets/tls_certificate", str(folder / "tls_certificate"))
        for old, new in (
            ("bind :5432", f"bind 127.0.0.1:{near}"),
            ("bind :6379", f"bind 127.0.0.1:{near + 1}"),
            ("server postgres postgres:5432", f"server postgres {behind}"),
            ("server redis redis:6379", f"server redis 127.0.0.1:{redis.port}"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / "haproxy.cfg").write_text(text)
        with subprocess.Popen([program, "-db", "-f", tmp_path / "haproxy.cfg"]) as door:
            try:
                yield settings_of(folder / "host", near, empty_postgres_url)
            finally:
                door.terminate()


def postgres_address(url: str) -> str:
    """Where a test's PostgreSQL listens, as HAProxy names it."""
    at = make_url(url)
    folder, port = at.query.get("host"), at.query.get("port", at.port or 5432)
    return f"unix@{folder}/.s.PGSQL.{port}" if folder else f"{at.host}:{port}"


def settings_of(secrets: Path, port: int, here: str) -> Settings:
    """What the secrets say, with the ports, the user and the database of these tests."""
    given = (secrets / "database_url").read_text()
    assert given.startswith("postgresql://tuner:") and "@127.0.0.1:5432/tuner?" in given
    local = make_url(here)
    user = f"{local.username}:{local.password or 'none'}"
    tls = given.partition("?")[2].replace("/run/secrets", str(secrets))
    broker = (secrets / "broker_url").read_text().replace(":6379", f":{port + 1}")
    assert broker.startswith("rediss://:")
    database = f"postgresql://{user}@127.0.0.1:{port}/{local.database}?{tls}"
    return Settings(database, broker, secrets / "tls_ca")


def test_nobody_comes_in_without_tls_the_certificates_or_the_password(by_tls):
    database, broker = by_tls.database_url, by_tls.broker_url
    with psycopg.connect(wait_for(lambda: connecting(database))) as connection:
        used = connection.execute("select 1").fetchone()
    assert used == (1,)
    for other in (
        "sslmode=disable",
        "sslmode=verify-full&sslnegotiation=direct&sslrootcert=system",
    ):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{database.partition('?')[0]}?{other}")
    port = urlsplit(broker).port
    with Redis.from_url(broker, ssl_ca_certs=str(by_tls.broker_ca)) as client:
        assert client.ping()
    with (
        Redis("127.0.0.1", port, password=urlsplit(broker).password) as plain,
        pytest.raises(Refused),
    ):
        plain.ping()
    with (
        Redis("127.0.0.1", port, ssl=True, ssl_ca_certs=str(by_tls.broker_ca)) as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.ping()
    with pytest.raises(Refused), Redis("127.0.0.1", port, ssl=True) as distrustful:
        distrustful.ping()


def connecting(database: str) -> str:
    """The URL, once its server answers."""
    try:
        psycopg.connect(database).close()
    except (psycopg.OperationalError, ssl.SSLError):
        return ""
    return database


@pytest.mark.slow
def test_a_night_on_two_hosts_loses_nothing_though_one_dies_at_work(by_tls, tmp_path):
    wait_for(lambda: connecting(by_tls.database_url))
    nightly = tmp_path / "nightly.toml"
    models = ", ".join(json.dumps(PROBLEM.format(n=n)) for n in SIZES)
    nightly.write_text(
        "".join(NIGHT.format(models=models, device=d, version=v) for d, v in HOSTS.values())
    )
    settings = Settings(by_tls.database_url, by_tls.broker_url, by_tls.broker_ca, nightly=nightly)
    more = {
        name: {
            **other_host(tmp_path, name, version),
            "TUNER_BROKER_CA": str(by_tls.broker_ca),
            "TUNER_CACHE_DIR": str(tmp_path / f"cache-{name}"),
        }
        for name, (_, version) in HOSTS.items()
    }
    place = by_tls.database_url, by_tls.broker_url
    with Database.open(by_tls.database_url) as database, ExitStack() as stack:
        jobs = JobStore(database)
        a = stack.enter_context(celery_worker(*place, tmp_path / "a.log", **more["a"]))
        b = stack.enter_context(celery_worker(*place, tmp_path / "b.log", **more["b"]))
        wait_for(lambda: len(WorkerStore(database).list(living=True)) == 2)
        run_nightly(settings, today=NIGHT_OF)
        child = wait_for(lambda: tuning_child(b.pid), 120)
        os.kill(child, signal.SIGKILL)
        b.kill()
        stack.enter_context(celery_worker(*place, tmp_path / "b2.log", **more["b"]))
        queued = jobs.list(JobQuery(), limit=50)
        assert len(queued) == 6
        done = wait_for(lambda: all_done(jobs), 240)
        assert {one.state for one in done} == {JobState.DONE}
        assert {one.id for one in done} == {one.id for one in queued}
        assert a.poll() is None
        night = NightStore(database).night(SCHEDULE, NIGHT_OF)
        assert night is not None and night.finished_at is not None
    for device, version in HOSTS.values():
        folder = tmp_path / device
        environ = {**os.environ, "TUNER_DATABASE_URL": by_tls.database_url}
        words = ["export", "--device", device, "--engine", f"sglang=={version}", "--out", folder]
        tuner = [sys.executable, "-c", "from tuner.cli import main; main()"]
        done = subprocess.run(
            [*tuner, *words, "--allow-predicted"], env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found = {path.name for path in folder.rglob(f"E=8,*device_name={device}*.json")}
        wanted = {f"E=8,N={n},device_name={device}" for n in SIZES}
        assert all(any(name.startswith(one) for name in found) for one in wanted), found


def all_done(jobs: JobStore):
    found = jobs.list(JobQuery(), limit=50)
    return found if all(one.state.finished for one in found) else None
