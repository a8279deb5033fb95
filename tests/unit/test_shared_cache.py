"""The cache that hosts share: what it serves, what it refuses, and what it forgets."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from shared_cache_cases import objects_of_six_ages

from tuner.compile.shared import SharedCache, open_shared_cache
from tuner.compile.shared_results import SharedResult, unpack
from tuner.errors import BadInput
from tuner.problems.results import Compiled, Status

KEY = "k" * 32
NAME = "ab" + "0" * 62


@pytest.fixture
def cache(tmp_path: Path) -> SharedCache:
    return SharedCache(str(tmp_path / "cache"), KEY)


def objects(cache_folder: Path) -> list[Path]:
    return sorted(path for path in cache_folder.rglob("*") if path.is_file())


def the_object(tmp_path: Path) -> Path:
    (path,) = objects(tmp_path / "cache")
    return path


def test_what_was_put_is_served_to_another_process_with_the_same_key(
    cache: SharedCache, tmp_path: Path
) -> None:
    cache.put(NAME, b"binary")
    assert SharedCache(str(tmp_path / "cache"), KEY).get(NAME) == b"binary"
    assert cache.get("cd" + NAME[2:]) is None


def test_each_flipped_byte_makes_an_object_absent(cache: SharedCache, tmp_path: Path) -> None:
    cache.put(NAME, b"machine code")
    path = the_object(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert cache.get(NAME) is None, at
    path.write_bytes(whole)
    assert cache.get(NAME) == b"machine code"


def test_a_torn_object_is_absent_at_any_length(cache: SharedCache, tmp_path: Path) -> None:
    cache.put(NAME, b"machine code")
    path = the_object(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.get(NAME) is None, length


def test_an_object_under_another_name_is_absent(cache: SharedCache, tmp_path: Path) -> None:
    cache.put(NAME, b"binary")
    other = "ab" + "1" * 62
    the_object(tmp_path).rename(tmp_path / "cache" / "ab" / other)
    assert cache.get(other) is None


def test_an_object_of_another_key_is_absent_and_is_replaced(
    cache: SharedCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SharedCache(str(tmp_path / "cache"), "x" * 32).put(NAME, b"planted")
    with caplog.at_level(logging.WARNING):
        assert cache.get(NAME) is None
    assert "its HMAC is wrong" in caplog.text
    cache.put(NAME, b"binary")
    assert cache.get(NAME) == b"binary"


def test_the_least_recently_used_objects_go_first(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = SharedCache(str(folder), KEY, limit_bytes=5000)
    names = objects_of_six_ages(cache.put, folder)
    assert cache.get(names[0]) is not None  # the oldest one is now the last used one
    cache.trim()
    kept = {path.name for path in objects(folder)}
    assert kept == {names[0], *names[3:]}
    assert sum(path.stat().st_size for path in objects(folder)) <= 5000


def test_a_killed_writers_file_is_never_served_and_goes_with_time(
    cache: SharedCache, tmp_path: Path
) -> None:
    cache.put(NAME, b"binary")
    left = the_object(tmp_path).with_name(f"{NAME}.0123456789abcdef.tmp")
    left.write_bytes(b"half")
    cache.trim()
    assert left.exists()  # its writer may be alive
    os.utime(left, (1, 1))
    cache.trim()
    assert not left.exists()
    assert cache.get(NAME) == b"binary"


def test_storage_without_a_move_holds_the_same_objects() -> None:
    MemoryFileSystem.store.clear()
    cache = SharedCache("memory://tuner/cache", KEY, limit_bytes=3000)
    cache.put(NAME, b"binary")
    assert SharedCache("memory://tuner/cache", KEY).get(NAME) == b"binary"
    for number in range(4):
        cache.put(f"{number:02d}{'0' * 62}", bytes(1000))
    cache.trim()
    assert cache.get(NAME) is None
    assert cache.get("03" + "0" * 62) == bytes(1000)


def test_a_storage_that_fails_counts_as_empty_and_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = SharedCache(str(tmp_path / "file" / "cache"), KEY)
    with caplog.at_level(logging.WARNING):
        cache.put(NAME, b"binary")
        assert cache.get(NAME) is None
    assert len(caplog.records) == 1
    assert "left alone for 60 s" in caplog.text


def test_the_environment_names_the_cache_and_its_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    assert open_shared_cache({}) is None
    named = {"TUNER_SHARED_CACHE": str(tmp_path / "cache")}
    with pytest.raises(BadInput, match="TUNER_SHARED_CACHE needs TUNER_SHARED_CACHE_KEY"):
        open_shared_cache(named)
    with pytest.raises(BadInput, match="has 3 characters and needs 32"):
        open_shared_cache({**named, "TUNER_SHARED_CACHE_KEY": "abc"})
    with pytest.raises(BadInput, match="whole number of gigabytes"):
        open_shared_cache(
            {**named, "TUNER_SHARED_CACHE_KEY": KEY, "TUNER_SHARED_CACHE_GB": "a lot"}
        )
    with pytest.raises(BadInput, match="TUNER_SHARED_CACHE: "):
        open_shared_cache({"TUNER_SHARED_CACHE": "nosuch://x", "TUNER_SHARED_CACHE_KEY": KEY})
    found = open_shared_cache({**named, "TUNER_SHARED_CACHE_KEY_FILE": str(tmp_path / "key")})
    assert found is not None
    assert found.identity == SharedCache("memory://elsewhere", KEY).identity


def test_a_result_is_read_back_with_its_files_in_their_order() -> None:
    compiled = Compiled(Status.OK, 1024, 32, 0, code="c" * 64, cached=True)
    files = {"_kernel.json": b"{}", "_kernel.cubin": bytes(range(256))}
    found = unpack(SharedResult(compiled, "FOLDER", files).pack())
    assert found == SharedResult(compiled, "FOLDER", files)
    assert list(found.files or ()) == list(files)


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "", ".hidden", "__grp__k.json"])
def test_a_result_with_a_name_that_leaves_its_folder_is_refused(name: str) -> None:
    compiled = Compiled(Status.OK, code="c" * 64)
    for result in (
        SharedResult(compiled, "FOLDER", {name: b""}),
        SharedResult(compiled, name, {"k.cubin": b""}),
    ):
        with pytest.raises(ValueError, match="is no name of a file"):
            unpack(result.pack())


def _write_for_ever(folder: str, seed: int) -> None:
    cache = SharedCache(folder, KEY, limit_bytes=200_000)
    rng = random.Random(seed)  # noqa: S311 (no secret)
    while True:
        name = f"{rng.randrange(40):02d}{'0' * 62}"
        cache.put(name, name.encode() * rng.randrange(1, 200))


def test_under_killed_writers_and_flipped_bytes_nothing_wrong_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    rng = random.Random(1)  # noqa: S311 (no secret)
    context = multiprocessing.get_context("spawn")
    cache = SharedCache(str(folder), KEY)
    writers = [
        context.Process(target=_write_for_ever, args=(str(folder), seed), daemon=True)
        for seed in range(3)
    ]
    for writer in writers:
        writer.start()
    served = 0
    try:
        while served < 3000:
            name = f"{rng.randrange(40):02d}{'0' * 62}"
            data = cache.get(name)
            if data is not None:
                served += 1
                assert data == name.encode() * (len(data) // len(name))
            if served and served % 100 == 0:
                _flip(rng, folder)
            if served in (1000, 2000) and all(writer.is_alive() for writer in writers[:1]):
                os.kill(writers[0].pid or 0, signal.SIGKILL)
                writers[0].join()
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    for number in range(40):  # what was torn or flipped is written again and then served
        name = f"{number:02d}{'0' * 62}"
        cache.put(name, name.encode())
        assert cache.get(name) == name.encode()


def _flip(rng: random.Random, folder: Path) -> None:
    try:
        path = rng.choice(objects(folder))
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    except (FileNotFoundError, ValueError, IndexError):
        return  # a writer has just replaced it, or it is empty
