"""The cache that hosts share in S3, through s3fs and a server that speaks S3's protocol."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tuner.compile.shared import SharedCache
from tuner.errors import BadInput

KEY = "k" * 32
NAME = "ab" + "0" * 62
URL = "s3://compiled/tuner"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="the dev group's s3fs is not installed")
    server_module = pytest.importorskip("moto.server", reason="the dev group's moto is missing")
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The storage as fsspec has it, with an empty bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    s3fs = importlib.import_module("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    storage = s3fs.S3FileSystem()
    storage.mkdir("compiled")
    yield storage
    storage.rm("compiled", recursive=True)


def kept(bucket: Any) -> list[str]:
    bucket.invalidate_cache()
    return [path.rpartition("/")[2] for path in bucket.find("compiled")]


def test_another_host_is_served_what_was_put(bucket: Any) -> None:
    cache = SharedCache(URL, KEY)
    assert cache.get(NAME) is None
    cache.put(NAME, b"binary" * 100_000)
    assert SharedCache(URL, KEY).get(NAME) == b"binary" * 100_000
    cache.put(NAME, b"newer")
    assert cache.get(NAME) == b"newer"
    assert kept(bucket) == [NAME]


def test_torn_and_foreign_objects_are_absent(bucket: Any, caplog: pytest.LogCaptureFixture) -> None:
    cache = SharedCache(URL, KEY)
    cache.put(NAME, b"machine code")
    path = f"compiled/tuner/ab/{NAME}"
    whole = bucket.cat_file(path)
    for torn in (b"", whole[:10], whole[:-1], whole[:-1] + b"!"):
        bucket.pipe_file(path, torn)
        assert cache.get(NAME) is None
    SharedCache(URL, "x" * 32).put(NAME, b"planted")
    with caplog.at_level(logging.WARNING):
        assert cache.get(NAME) is None
    assert "its HMAC is wrong" in caplog.text
    bucket.pipe_file(path, whole)
    assert cache.get(NAME) == b"machine code"


def test_the_least_recently_written_objects_go_first(bucket: Any) -> None:
    cache = SharedCache(URL, KEY, limit_bytes=3000)
    names = [f"{number:02d}{'0' * 62}" for number in range(4)]
    for name in names:  # S3's times are whole seconds, and equal ones go by name
        cache.put(name, bytes(1000))
    cache.trim()
    assert kept(bucket) == names[2:]


def test_what_is_read_after_a_day_is_written_anew(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SharedCache(URL, KEY)
    cache.put(NAME, b"binary")
    path = f"compiled/tuner/ab/{NAME}"
    before = bucket.cat_file(path)
    assert cache.get(NAME) == b"binary"
    assert bucket.cat_file(path) == before
    monkeypatch.setattr("tuner.compile.shared.REFRESH_S", -1.0)
    assert cache.get(NAME) == b"binary"
    assert bucket.cat_file(path) != before


def test_a_missing_bucket_is_said_once(bucket: Any, caplog: pytest.LogCaptureFixture) -> None:
    cache = SharedCache("s3://elsewhere/tuner", KEY)
    with caplog.at_level(logging.WARNING, "tuner.compile"):
        assert cache.get(NAME) is None
        cache.put(NAME, b"binary")
        cache.put(NAME, b"binary")
    assert caplog.text.count("left alone for 60 s") == 1
    assert "bucket does not exist" in caplog.text


def test_without_s3fs_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    registry = importlib.import_module("fsspec.registry")  # fsspec.registry is a table, too
    monkeypatch.delitem(registry._registry, "s3", raising=False)
    with pytest.raises(BadInput, match=r"pip install 'engine-tuner\[s3\]'"):
        SharedCache(URL, KEY)
