"""Export to a full disk: all files are written, or none, and what was there stays."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cases import L40S
from test_export import winners

from tuner.engines.engine import find_engine
from tuner.errors import UnwritableOutput
from tuner.export.export import export_device
from tuner.export.files import write_all
from tuner.families.fused_moe.engine import moe_engine

SIZE = 1 << 20  # bytes; the engine's own files alone take more
SOME = 100_000


@dataclass(frozen=True)
class Disk:
    """A small disk."""

    folder: Path
    mounted: bool

    @property
    def says(self) -> str:
        return os.strerror(errno.ENOSPC if self.mounted else errno.EFBIG)

    @contextlib.contextmanager
    def full(self, room: int = 0) -> Iterator[None]:
        """No more than `room` bytes can be written in the block."""
        if self.mounted:
            space = os.statvfs(self.folder)
            filler = self.folder / "filler"
            filler.write_bytes(bytes(space.f_bavail * space.f_frsize - room))
            yield
            filler.unlink()
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The limit of one file's size, which any user may set. The engine's files have up to 4 KB.
        resource.setrlimit(resource.RLIMIT_FSIZE, (min(room, 2000), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    yield Disk(folder, mounted)
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def contents(folder: Path) -> dict[str, bytes | None]:
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


@pytest.fixture(scope="module")
def engine():
    return find_engine("sglang==0.5.16")


@pytest.mark.parametrize("out", ["out", "new/deep/out"])
def test_a_new_folder_does_not_appear_half_written(engine, disk, out):
    root = disk.folder / out
    with disk.full(SOME):
        before = contents(disk.folder)
        with pytest.raises(UnwritableOutput) as said:
            export_device(winners(warps=4), L40S, engine, root, allow_predicted=False)
        assert contents(disk.folder) == before
    assert str(said.value).startswith(f"cannot write to {root}: {disk.says}; nothing was changed")


def test_a_folder_that_exists_stays_as_it_was(engine, disk, tmp_path):
    source = tmp_path / "source"
    export_device(winners(warps=4), L40S, engine, source, allow_predicted=False)
    root = disk.folder / "out"
    ours = [path for path in source.rglob(f"*N=64,device_name={L40S.name}*") if path.is_file()]
    write_all(root, {root / path.relative_to(source): path.read_bytes() for path in ours})
    with disk.full(SOME):
        before = contents(disk.folder)
        with pytest.raises(UnwritableOutput, match=f"cannot write to {root}: {disk.says}"):
            export_device(winners(warps=8), L40S, engine, root, allow_predicted=False)
        assert contents(disk.folder) == before


@pytest.mark.parametrize("room", [0, 8192])
def test_the_engine_s_package_stays_as_it_was(engine, disk, room):
    root = disk.folder / "engine/sglang"
    source = moe_engine(engine).rules.source  # which names the files that servers look for
    copy = root / source.relative_to(engine.root)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(source.read_bytes())
    here = replace(engine, root=root)
    moe_engine(here).configs.mkdir()
    first = export_device(winners(warps=4), L40S, here, None, allow_predicted=False)
    assert all(file.path.is_relative_to(root) for file in first.files)
    with disk.full(room):
        before = contents(disk.folder)
        with pytest.raises(UnwritableOutput, match=disk.says):
            export_device(winners(warps=8), L40S, here, None, allow_predicted=False)
        assert contents(disk.folder) == before
    export_device(winners(warps=8), L40S, here, None, allow_predicted=False)
    assert contents(disk.folder) != before


def test_another_user_s_engine_can_read_new_files_and_replaced_ones(tmp_path):
    root = tmp_path / "out"
    for name in ("new", "replaced"):
        write_all(root, {root / "a/b": name.encode(), root / name: b""})
        files = [path for path in root.rglob("*") if path.is_file()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o644}, name


def test_a_file_that_cannot_be_replaced_is_named_before_anything_changes(tmp_path):
    files = {tmp_path / name: b"new" for name in ("a", "b", "c/d")}
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    before = contents(tmp_path)
    with pytest.raises(UnwritableOutput, match="Is a directory; nothing was changed"):
        write_all(tmp_path, files)
    assert contents(tmp_path) == before


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(self: Path, mode: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "chmod", interrupt)
    for root in (tmp_path, tmp_path / "new/out"):
        with pytest.raises(KeyboardInterrupt):
            write_all(root, {root / "a/b": b"new"})
        assert contents(tmp_path) == {}
