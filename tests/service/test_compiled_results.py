"""The API as the store of the cache that hosts share: what it keeps, from whom, and how much."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from api_server import Server, eventually, serving
from limits import RateLimitItemPerHour
from servers import free_port
from shared_cache_cases import assert_first_round_is_cached, objects_of_six_ages
from worker_processes import celery_worker, wait_for

from api.compiled import CompiledResults
from api.settings import ApiSettings, read_api_settings
from tuner.compile.shared import SharedCache, open_shared_cache
from tuner.compile.storage import Folder
from tuner.errors import BadInput
from tuner.jobs.ahead import compile_request
from tuner.jobs.job import JobRequest, JobState
from tuner.problems.registry import parse_problem
from tuner.store import JobStore
from tuner.store.keys import KeyStore, Scope
from tuner.store.submissions import Submission
from tuner.tuning.request import Effort
from workers import run_job
from workers.settings import Settings

TUNER = Path(sys.executable).with_name("tuner")
MAC_KEY = "k" * 32
NAME = "ab" + "0" * 62
PATH = f"/v1/compiled/{NAME}"
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def settings(sqlite_url: str, tmp_path: Path) -> ApiSettings:
    return ApiSettings(Settings(sqlite_url), cache_gb=1, cache_dir=tmp_path)


@pytest.fixture
def server(settings: ApiSettings) -> Iterator[Server]:
    with serving(settings) as running:
        running.key = running.app.state.api.keys.add("workers", Scope.SUBMIT)
        yield running


@pytest.fixture
def cache(server: Server) -> SharedCache:
    return SharedCache(server.url, MAC_KEY, server_key=server.key)


def files(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "shared").rglob("*") if path.is_file())


def test_another_host_is_served_what_was_put(cache: SharedCache, server: Server) -> None:
    assert cache.get(NAME) is None
    cache.put(NAME, b"binary" * 100_000)
    other = SharedCache(f"{server.url}/", MAC_KEY, server_key=server.key)
    assert other.get(NAME) == b"binary" * 100_000
    cache.put(NAME, b"newer")
    assert other.get(NAME) == b"newer"


def test_what_somebody_else_put_or_changed_is_not_used(
    cache: SharedCache, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SharedCache(server.url, "x" * 32, server_key=server.key).put(NAME, b"planted")
    with caplog.at_level(logging.WARNING):
        assert cache.get(NAME) is None
    assert "its HMAC is wrong" in caplog.text
    assert server.call("PUT", PATH, b"torn", BYTES).status == 204
    assert cache.get(NAME) is None
    answer = server.call("PUT", PATH, b"", BYTES)
    assert answer.problem(422) == "send the bytes of the compile result"
    cache.put(NAME, b"binary")
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.get(NAME) is None, at
    path.write_bytes(whole)
    assert cache.get(NAME) == b"binary"


def test_only_digests_are_names(server: Server, tmp_path: Path) -> None:
    others = ("../ab", "..%2f..%2fx", "AB" + NAME[2:], NAME[:-1], NAME + "0", "", "%2e%2e")
    for name in (*others, NAME + "%00"):
        for method, body in (("GET", None), ("PUT", b"binary")):
            status = server.call(method, f"/v1/compiled/{name}", body, BYTES).status
            assert status == 404, (name, method)
    assert files(tmp_path) == []


def test_each_scope_reaches_so_far(server: Server, tmp_path: Path) -> None:
    reader = server.app.state.api.keys.add("reader", Scope.READ)
    said = server.call("PUT", PATH, b"binary", BYTES, key=reader).problem(403)
    assert said == "this needs a key of scope submit, and yours is of read"
    assert files(tmp_path) == []
    assert server.call("PUT", PATH, b"binary", BYTES).status == 204
    answer = server.call("GET", PATH, key=reader)
    assert (answer.status, answer.body) == (200, b"binary")
    assert answer.headers["content-type"] == "application/octet-stream"
    server.key = None
    server.call("GET", PATH).problem(401)
    server.call("PUT", PATH, b"binary", BYTES).problem(401)


def test_what_is_too_large_is_not_kept_and_costs_only_itself(
    settings: ApiSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(replace(settings, max_body_bytes=2000)) as server:
        server.key = server.app.state.api.keys.add("workers", Scope.SUBMIT)
        cache = SharedCache(server.url, MAC_KEY, server_key=server.key)
        with caplog.at_level(logging.WARNING, "tuner.compile"):
            cache.put(NAME, bytes(2000))  # and its head
        assert "is not shared: a body has at most 2000 bytes" in caplog.text
        assert files(tmp_path) == []
        cache.put(NAME, bytes(1900))
        assert cache.get(NAME) == bytes(1900)


def test_other_media_types_are_refused(server: Server, tmp_path: Path) -> None:
    answer = server.call("PUT", PATH, {"a": 1})
    assert answer.problem(415) == "send bytes, as Content-Type: application/octet-stream"
    assert files(tmp_path) == []


def test_a_body_that_is_cut_off_leaves_nothing(server: Server, tmp_path: Path) -> None:
    head = (
        f"PUT {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {BYTES['Content-Type']}\r\n"
        f"Authorization: Bearer {server.key}\r\nContent-Length: 100\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode() + b"half")
        client.shutdown(socket.SHUT_WR)
        client.recv(1 << 16)  # until it has given up
    assert server.call("GET", PATH).status == 404
    assert files(tmp_path) == []


def test_a_server_that_keeps_none_says_what_its_operator_can_do(
    settings: ApiSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(replace(settings, cache_gb=0)) as server:
        server.key = server.app.state.api.keys.add("workers", Scope.SUBMIT)
        cache = SharedCache(server.url, MAC_KEY, server_key=server.key)
        with caplog.at_level(logging.WARNING, "tuner.compile"):
            cache.put(NAME, b"binary")
            assert cache.get(NAME) is None
    assert "its operator can set TUNER_API_CACHE_GB" in caplog.text
    assert caplog.text.count("left alone for 60 s") == 1


def test_they_have_a_rate_of_their_own(settings: ApiSettings) -> None:
    few = replace(settings, cache_rate=(RateLimitItemPerHour(2),), large_rate=())
    with serving(few) as server:
        server.key = server.app.state.api.keys.add("workers", Scope.SUBMIT)
        puts = [server.call("PUT", PATH, bytes(100_000), BYTES) for _ in range(3)]
        assert [answer.status for answer in puts] == [204, 204, 429]
        assert server.call("GET", PATH).status == 429
        assert server.call("GET", "/v1/jobs").status == 200


def test_a_client_uses_a_connection_again_also_after_the_server_ended_it(
    settings: ApiSettings,
) -> None:
    with serving(settings) as server:
        key = server.app.state.api.keys.add("workers", Scope.SUBMIT)
        cache = SharedCache(server.url, MAC_KEY, server_key=key)
        cache.put(NAME, b"binary")
        kept = cache._storage._kept.connection
        assert cache.get(NAME) == b"binary"
        assert cache._storage._kept.connection is kept
    with serving(settings, port=server.port):  # the first one's connections have ended
        assert cache.get(NAME) == b"binary"


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    results = CompiledResults(Folder(folder), limit_bytes=5000)
    names = objects_of_six_ages(results.put, folder)
    assert results.get(names[0]) is not None  # the oldest one is now the last used one
    results.trim()
    assert [results.get(name) is not None for name in names] == [True, False, False] + [True] * 3


def test_a_server_trims_by_itself(settings: ApiSettings, tmp_path: Path) -> None:
    with serving(settings) as server:
        server.key = server.app.state.api.keys.add("workers", Scope.SUBMIT)
        old = "00" + "0" * 62
        server.call("PUT", f"/v1/compiled/{old}", b"old", BYTES)
        eventually(lambda: server.app.state.api.compiled._trimming.locked() is False)
        server.app.state.api.compiled._limit_bytes = 10
        for number in range(256):
            assert server.call("PUT", f"/v1/compiled/{number:064x}", b"new", BYTES).status == 204
        eventually(lambda: len(files(tmp_path)) <= 3)


def test_settings_and_keys_are_checked() -> None:
    read = read_api_settings({"TUNER_API_CACHE_GB": "3", "TUNER_API_CACHE_RATE": "5/second"})
    assert (read.cache_gb, [str(rate) for rate in read.cache_rate]) == (3, ["5 per 1 second"])
    named = {"TUNER_SHARED_CACHE": "https://tuner.example", "TUNER_SHARED_CACHE_KEY": MAC_KEY}
    with pytest.raises(BadInput, match="needs TUNER_API_KEY, a key of scope submit"):
        open_shared_cache(named)
    with pytest.raises(BadInput, match="TUNER_API_KEY holds no key"):
        open_shared_cache({**named, "TUNER_API_KEY": "two words"})
    for url in ("https://", "https://me:secret@host", "https://host/?a=b", "http://host:x"):
        with pytest.raises(BadInput, match="a server is like https://HOST"):
            open_shared_cache({**named, "TUNER_SHARED_CACHE": url, "TUNER_API_KEY": "tuner_x"})
    assert open_shared_cache({**named, "TUNER_API_KEY": "tuner_x"}) is not None


def test_a_server_does_not_start_with_a_folder_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(tmp_path / "file"),
        "TUNER_API_CACHE_GB": "1",
    }
    command = [str(TUNER), "serve", "--port", "0", "--no-worker"]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "cannot be written: Not a directory; make it writable, or set TUNER" in run.stderr
    assert not (tmp_path / "tuner.db").exists()


@contextlib.contextmanager
def api_process(database_url: str, home: Path) -> Iterator[str]:
    """The URL of a `tuner serve` that keeps compile results in `home`."""
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": database_url,
        "TUNER_CACHE_DIR": str(home),
        "TUNER_API_CACHE_GB": "1",
    }
    port, log = free_port(), home / "api.log"  # a pipe that nobody reads would stop the server
    command = [str(TUNER), "serve", "--port", str(port), "--no-worker"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out)
    try:
        wait_for(lambda: "Uvicorn running on " in log.read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_a_worker_compiles_for_another_host_through_the_api_alone(
    postgres_url: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real API, a real worker and real compiles; then a host without a folder in common asks."""
    with KeyStore.open(postgres_url) as keys:
        key = keys.add("workers", Scope.SUBMIT)
    problem = parse_problem("block_gemm:N=512,K=512,dtype=fp8_w8a8,block=128x128")
    request = JobRequest(problem, "H200", "sglang==0.5.16", effort=Effort.QUICK)
    request = replace(request, selection=type(request.selected)((64,)))
    with JobStore.open(postgres_url) as jobs, api_process(postgres_url, tmp_path) as url:
        shared = {
            "TUNER_SHARED_CACHE": url,
            "TUNER_SHARED_CACHE_KEY": MAC_KEY,
            "TUNER_API_KEY": key,
        }
        (posted,) = jobs.submit_all([Submission(compile_request(request))])
        here = {**shared, "TUNER_CACHE_DIR": str(tmp_path / "cpu")}
        with celery_worker(postgres_url, redis_url, tmp_path / "worker.log", **here):
            wait_for(lambda: enough_is_compiled(jobs, posted.job.id), limit_s=250)
        for name, value in {**shared, "TUNER_CACHE_DIR": str(tmp_path / "gpu")}.items():
            monkeypatch.setenv(name, value)
        with run_job.open_run(run_job._session_request(request, Settings(postgres_url))) as run:
            assert_first_round_is_cached(run)
    assert len(files(tmp_path)) > 10


def enough_is_compiled(jobs: JobStore, job_id: str) -> bool:
    assert jobs.get(job_id).state not in (JobState.FAILED, JobState.DEAD)
    return any(event.data.get("enough") for event in jobs.events(job_id))
