"""What an LLM engine is on disk. Engines are read, never imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device
from tuner.engines.config_files import ConfigFile, config_file_text, launch_config, read_config_file
from tuner.engines.locate import Package, Place, find_packages, version_order
from tuner.engines.sglang.fused_moe.file_names import FileKey, parse_file_name
from tuner.engines.sglang.package import DEFAULT_VERSION, SGLang, ShippedFile
from tuner.errors import UnknownEngine, did_you_mean
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.points import Config, Gemm

__all__ = [
    "ConfigFile",
    "Engine",
    "FileKey",
    "ShippedFile",
    "config_file_text",
    "find_engine",
    "launch_config",
    "parse_file_name",
    "parse_spec",
    "read_config_file",
]


class Engine(Protocol):
    """One version of an engine on disk.

    A `root` argument is a folder that holds `configs/`; `triton` a version such as "3.6.0".
    Any method may raise UnsupportedKernel where the version's source is not as known.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def root(self) -> Path:
        """The package's own folder."""
        ...

    @property
    def package_root(self) -> Path:
        """The folder in the package that holds the shipped `configs/`."""
        ...

    @property
    def config_dir_variable(self) -> str | None:
        """The variable that points the engine at another root; None where it has none."""
        ...

    def config_root(self, environ: Mapping[str, str] = ...) -> Path:
        """The root that the engine reads in that environment."""
        ...

    def config_dir(self, root: Path, triton: str) -> Path:
        """Where files for a Triton version go."""
        ...

    def has_down_files(self) -> bool:
        """Whether the engine reads files of their own for the down gemm."""
        ...

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """The name that the engine looks for; UnsupportedKernel for DOWN without down files."""
        ...

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """The file that the engine's loader reads. Raises MalformedConfigFile where it stops."""
        ...

    def pick(self, entries: Mapping[int, Config], batch_size: int) -> Config:
        """The entry of a file that the engine runs at a batch size. `entries` is not empty."""
        ...

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """The files that come with the engine."""
        ...

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """What the engine runs without a file, with the engine's own keys."""
        ...

    def incumbents(
        self,
        problem: FusedMoe,
        device: Device,
        batch_size: int,
        triton: str,
        root: Path | None = None,
    ) -> dict[str, dict[Gemm, Config]]:
        """What the engine runs: "default", and "shipped" where its loader finds a file."""
        ...

    def kernel_source(self, family: str) -> Path:
        """The file that defines a family's jitted kernels."""
        ...

    def has_plugins(self) -> bool:
        """Whether its servers load plugins, and so can be given attention files."""
        ...


_ENGINES: dict[str, tuple[Callable[[str, Path], Engine], str]] = {
    SGLang.name: (SGLang, DEFAULT_VERSION),
}


def find_engine(spec: str, environ: Mapping[str, str] = os.environ) -> Engine:
    """Find "sglang", or exactly "sglang==0.5.16", on this machine.

    Without a version: the installed one; else the newest in TUNER_ENGINE_PATH's folders; else,
    of those unpacked by `make`, the default version, or the newest if that one is not there.
    Raises UnknownEngine and names the versions found.
    """
    name, version = parse_spec(spec)
    make, default = _ENGINES[name]
    found = find_packages(name, environ)
    if not found:
        raise UnknownEngine(
            f"no {name} on this machine: install it, or unpack its wheel into a folder "
            f"that TUNER_ENGINE_PATH names"
        )
    matching = found if version is None else [p for p in found if p.version == version]
    if version is not None and not matching:
        versions = sorted({package.version for package in found}, key=version_order)
        near = did_you_mean(version, versions)
        raise UnknownEngine(f"no {name}=={version} here, only {', '.join(versions)}{near}")
    chosen = _preferred(matching, default)
    return make(chosen.version, chosen.root)


def parse_spec(spec: str) -> tuple[str, str | None]:
    """(name, version or None). Raises UnknownEngine for a name of none, not of one not here."""
    name, equals, version = (part.strip() for part in spec.partition("=="))
    if name not in _ENGINES:
        near = did_you_mean(name, _ENGINES) or f"; write {' or '.join(_ENGINES)}"
        raise UnknownEngine(f"unknown engine {name!r}{near}")
    return name, version if equals else None


def _preferred(packages: list[Package], default: str) -> Package:
    place = min(package.place for package in packages)
    there = [package for package in packages if package.place is place]
    if place is Place.UNPACKED:
        there = [package for package in there if package.version == default] or there
    return max(there, key=lambda package: version_order(package.version))
