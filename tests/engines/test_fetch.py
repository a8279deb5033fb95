"""Engines and Tritons fetched with pip from an index on this machine."""

from __future__ import annotations

import fcntl
import json
import sys
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest
from package_index import ENGINE_FILES, Index, serving

from tuner.engines.engine import find_packages, find_triton, own_folders, pinned_triton
from tuner.engines.fetch import add as adding
from tuner.engines.fetch.add import add, remove
from tuner.engines.inventory import releases
from tuner.errors import EngineNotFetched, UnknownEngine

TRITON_FILES = {"triton/__init__.py": b"__version__ = '9.1.0'\n", "triton/_C/lib.so": b"\x7fELF"}
WHEEL = "vllm-1.2.0-py3-none-any.whl"
LINUX = 'platform_system == "Linux"'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where engines are added: an empty folder below this test's own prefix."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("TUNER_ENGINE_PATH", raising=False)
    return own_folders()[0]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with vllm 1.2.0, whose torch wants a Triton of the series 9.1."""
    with serving() as found:
        for name, value in found.environ().items():
            monkeypatch.setenv(name, value)
        found.add("vllm", "1.2.0", ENGINE_FILES, ("numpy", "torch==7.0"))
        found.add("vllm", "1.1.0", ENGINE_FILES)
        found.add("torch", "7.0", {"torch/__init__.py": b""}, (f"triton~=9.1.0; {LINUX}",))
        found.add("triton", "9.1.0", TRITON_FILES)
        found.add("triton", "9.2.0", TRITON_FILES)
        yield found


def fetched(index: Index) -> list[str]:
    """The wheels that were transferred as a whole."""
    whole = [path for path, part in index.asked if path.endswith(".whl") and part is None]
    return [path.rpartition("/")[2].split("-")[0] for path in whole]


def entries(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name != ".lock")


def test_an_engine_comes_once_with_a_record_and_the_triton_that_its_torch_pins(own, index):
    said: list[str] = []
    assert add("vllm", "1.2", said.append) == own / "vllm-1.2.0"
    assert entries(own) == ["triton-9.1.0", "vllm-1.2.0"]
    assert json.loads((own / "vllm-1.2.0/tuner-engine.json").read_text()) == {"triton": "9.1.0"}
    (package,) = find_packages("vllm")
    assert (package.version, pinned_triton(package)) == ("1.2.0", "9.1.0")
    assert find_triton("9.1.0") == own / "triton-9.1.0"
    assert sorted(fetched(index)) == ["triton", "vllm"]  # torch's metadata alone was asked for
    index.asked.clear()
    assert add("vllm", "1.2.0", said.append) == own / "vllm-1.2.0"
    assert index.asked == []  # what is there is not fetched again


def test_a_large_wheel_is_read_by_parts(own, index, monkeypatch):
    monkeypatch.setattr(adding, "WHOLE_BYTES", 100)
    said: list[str] = []
    add("vllm", "1.2.0", said.append, with_triton=False)
    assert entries(own) == ["vllm-1.2.0"]
    assert fetched(index) == []
    assert any("reading its Python and JSON out of a wheel of" in line for line in said)
    assert (own / "vllm-1.2.0/vllm/ops.py").read_bytes() == ENGINE_FILES["vllm/ops.py"]


def test_where_a_server_has_no_ranges_the_whole_wheel_is_downloaded(own, index, monkeypatch):
    """And what a killed process left is removed."""
    left = own / "vllm-1.2.0.abc.part"
    left.mkdir(parents=True)
    (left / "half.py").write_text("")
    monkeypatch.setattr(adding, "WHOLE_BYTES", 100)
    index.ranges = False
    add("vllm", "1.2.0", print, with_triton=False)
    assert entries(own) == ["vllm-1.2.0"]
    assert "vllm" in fetched(index)


@pytest.mark.parametrize(
    "failure",
    [OSError("Connection refused"), HTTPError("u", 503, "Service Unavailable", Message(), None)],
)
def test_where_parts_cannot_be_asked_for_pip_goes_on(own, index, monkeypatch, failure):
    """As behind a proxy that pip's own configuration names."""
    monkeypatch.setattr(adding, "WHOLE_BYTES", 100)

    def unreachable(*_, **__):
        raise failure

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)  # of this process, not of pip
    add("vllm", "1.2.0", print, with_triton=False)
    assert entries(own) == ["vllm-1.2.0"]
    assert "vllm" in fetched(index)


def placed(folder: Path, name: str, version: str) -> Path:
    """A folder as `add` leaves it, without a record."""
    package = folder / f"{name}-{version}" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    return package.parent


def test_a_triton_that_failed_is_fetched_by_the_same_command(own, index):
    whole = index.wheels.pop("triton-9.1.0-py3-none-any.whl")
    with pytest.raises(EngineNotFetched, match=r"vllm 1\.2\.0 is added, but not the Triton"):
        add("vllm", "1.2.0", print)
    assert entries(own) == ["vllm-1.2.0"]
    index.wheels["triton-9.1.0-py3-none-any.whl"] = whole
    add("vllm", "1.2.0", print)
    assert entries(own) == ["triton-9.1.0", "vllm-1.2.0"]


def test_the_inventory_says_what_is_pinned_and_missing(own, index):
    placed(own, "vllm", "1.2.0")
    (own / "vllm-1.2.0" / "tuner-engine.json").write_text('{"triton": "9.1.0"}')
    placed(own, "vllm", "1.1.0")
    ours = {(one.name, one.version): one for one in releases() if one.source == "added"}
    newest = ours["vllm", "1.2.0"]
    assert (newest.triton, newest.triton_here, newest.path) == ("9.1.0", False, own / "vllm-1.2.0")
    assert ours["vllm", "1.1.0"].triton is None
    add("triton", "9.1.0", print)
    assert next(one for one in releases() if one.version == "1.2.0").triton_here


@pytest.mark.parametrize("large", [False, True])
def test_a_wheel_that_differs_from_the_hash_leaves_nothing(own, index, monkeypatch, large):
    if large:
        monkeypatch.setattr(adding, "WHOLE_BYTES", 100)
        changed = {"vllm/ops.py": b"import os\n"}
        index.add("vllm", "1.2.0", {**ENGINE_FILES, **changed}, recorded=ENGINE_FILES)
    else:
        index.hashes[WHEEL] = "0" * 64
    with pytest.raises(EngineNotFetched, match=r"(?i)hash"):
        add("vllm", "1.2.0", print)
    assert entries(own) == []


def test_a_connection_that_breaks_off_leaves_nothing(own, index, monkeypatch):
    monkeypatch.setattr(adding, "WHOLE_BYTES", 100)
    index.add("vllm", "1.2.0", {**ENGINE_FILES, "vllm/b.so": b"x" * (1 << 21)})
    index.cut_after = 1000
    with pytest.raises(EngineNotFetched, match="broke off 3 times"):
        add("vllm", "1.2.0", print)
    assert entries(own) == []


def test_two_processes_do_not_add_at_once(own, index):
    own.mkdir(parents=True)
    with (own / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EngineNotFetched, match="another `tuner list engines --add`"):
            add("vllm", "1.2.0", print)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1.2.1", r"no vllm==1\.2\.1; did you mean '1\.2\.0'"),
        ("77", r"no vllm==77; its newest are 1\.1\.0, 1\.2\.0"),
        ("newest", r"'newest' is not a version: write vllm==VERSION"),
        ("1.2 --index-url x", "is not a version"),
    ],
)
def test_a_version_that_is_not_there_is_refused_with_those_that_are(own, index, version, message):
    with pytest.raises(UnknownEngine, match=message):
        add("vllm", version, print)
    assert not own.exists() or entries(own) == []


def test_a_wheel_that_pip_cannot_use_is_not_called_unknown(own, index):
    index.add("vllm", "1.2.0", ENGINE_FILES, ("not a requirement",))
    with pytest.raises(EngineNotFetched, match=r"pip cannot use the vllm==1\.2\.0"):
        add("vllm", "1.2.0", print)


def test_without_a_network_the_error_names_the_next_step(own, index, monkeypatch):
    with serving() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", f"{gone.url}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EngineNotFetched, match=r"cannot be reached.*network.*TUNER_ENGINE_PATH"):
        add("vllm", "1.2.0", print)
    assert entries(own) == []


def test_a_prefix_that_cannot_be_written_sends_engines_beside_the_store(own, index, monkeypatch):
    own.parent.mkdir(parents=True)
    own.write_text("not a folder")  # permissions do not stop the superuser
    folder = add("vllm", "1.2.0", print, with_triton=False)
    assert folder == own_folders()[1] / "vllm-1.2.0"
    (package,) = find_packages("vllm")
    assert package.root == folder / "vllm"
    own_folders()[1].rename(own_folders()[1].with_name("away"))
    own_folders()[1].write_text("not a folder")
    with pytest.raises(EngineNotFetched, match="cannot write to .* or "):
        add("vllm", "1.1.0", print)


def test_an_extra_of_older_releases_pins_their_torch(own, index):
    extras = ('torch==7.0; extra == "srt"', 'torch==6.0; extra == "hip"', "triton>=2")
    index.add("sglang", "0.4.9", {"sglang/__init__.py": b""}, extras)
    folder = add("sglang", "0.4.9", print, with_triton=False)
    assert json.loads((folder / "tuner-engine.json").read_text()) == {"triton": "9.1.0"}


def test_an_engine_that_pins_nothing_gets_no_record(own, index):
    folder = add("vllm", "1.1.0", print)
    assert not (folder / "tuner-engine.json").exists()
    assert entries(own) == ["vllm-1.1.0"]


def test_remove_takes_what_was_added_and_nothing_else(own, tmp_path, monkeypatch):
    placed(own, "vllm", "1.2.0")
    placed(own, "triton", "9.1.0")
    placed(tmp_path / "elsewhere", "vllm", "1.0.0")
    monkeypatch.setenv("TUNER_ENGINE_PATH", str(tmp_path / "elsewhere"))
    with pytest.raises(UnknownEngine, match=r"has added no vllm==1\.0\.0; did you mean '1\.2\.0'"):
        remove("vllm", "1.0.0")
    assert remove("vllm", "1.2.0") == own / "vllm-1.2.0"
    assert entries(own) == ["triton-9.1.0"]
    remove("triton", "9.1.0")
    assert entries(own) == []
    with pytest.raises(UnknownEngine, match="has added no"):
        remove("vllm", "1.2.0")


def test_newer_releases_come_first(own):
    for version in ("0.5.2", "0.5.16", "0.5.9"):
        placed(own, "sglang", version)
    assert [one.version for one in find_packages("sglang")] == ["0.5.16", "0.5.9", "0.5.2"]
