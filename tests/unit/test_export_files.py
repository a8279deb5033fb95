"""What sidecars say of the tool that wrote them."""

import importlib.metadata

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
