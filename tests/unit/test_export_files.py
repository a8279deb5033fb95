"""Writing exported files, and what sidecars say of the tool that wrote them."""

import importlib.metadata
import secrets
from pathlib import Path

import pytest

from tuner.export import files


def test_a_checkout_that_is_not_installed_writes_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(files, "version", missing)
    files._tool.cache_clear()
    try:
        assert files.sidecar_fields("a.json", "{}")["tool"] == "engine-tuner, not installed"
    finally:
        files._tool.cache_clear()


def test_a_folder_that_another_export_makes_meanwhile_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, token = tmp_path / "out", secrets.token_hex

    def slow(size: int) -> str:
        monkeypatch.setattr(secrets, "token_hex", token)
        files.write_all(root, {root / "a": b"first", root / "b/theirs": b"theirs"})
        return token(size)

    monkeypatch.setattr(secrets, "token_hex", slow)
    files.write_all(root, {root / "a": b"second", root / "b/ours": b"ours"})
    assert (root / "a").read_bytes() == b"second"
    assert {path.name for path in root.rglob("*")} == {"a", "b", "theirs", "ours"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
