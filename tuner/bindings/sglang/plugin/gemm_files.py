"""Write and read the files that carry tuned GEMMs to a server: an export writes them, the plugin
reads them.

Their path is `<root>/gemm/triton_3_6_0/<problem>,device_name=NVIDIA_H200.json`. This module needs
only the standard library, because it runs inside a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.plugin.files import OVERLAY_VARIABLE
from tuner.bindings.sglang.plugin.gemm_loaders import fields_of
from tuner.bindings.sglang.plugin.json_fields import (
    FORMAT,
    STATUSES,
    choice_field,
    parse_fields,
    read_data,
    text_field,
)
from tuner.engines.config_files import entry_json, parse_entry
from tuner.errors import BadProblem, MalformedConfigFile
from tuner.families.dense_gemm.problem import DENSE_GEMMS, DenseGemm, parse_dense_gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, version_folder
from tuner.problems.results import Status

FOLDER = "gemm"
CONFIG_DIR_VARIABLE = "TUNER_GEMM_CONFIG_DIR"

_TEXTS = ("device", "engine", "engine_version", "triton", "kernel_hash")


@dataclass(frozen=True)
class GemmFile:
    """The tuned entries of a GEMM on a kind of GPU, and the software they are for."""

    problem: DenseGemm
    device: str  # e.g. NVIDIA_H200
    engine: str  # e.g. sglang
    engine_version: str
    triton: str
    kernel_hash: str  # of all of the engine's dense GEMM kernels, as lifted
    entries: Mapping[int, Config]  # by M, ascending; as the engine's loader would return them
    statuses: Mapping[int, Status]  # of each entry

    @property
    def title(self) -> str:
        p = self.problem
        scales = f"{p.block[0]}x{p.block[1]}" if p.block else "channels"
        return f"{p.N}x{p.K} {p.dtype.value} {scales}"

    @property
    def predicted(self) -> bool:
        """Say whether no entry was measured."""
        return all(status is not Status.OK for status in self.statuses.values())

    def text(self) -> str:
        """Return the file's JSON; `read_gemm_file` reads it back."""
        entries = {
            str(size): {"config": config, "status": self.statuses[size].value}
            for size, config in self.engine_entries().items()
        }
        texts = {name: getattr(self, name) for name in _TEXTS}
        fields = {"format": FORMAT, "problem": self.problem.spec(), **texts, "entries": entries}
        return json.dumps(fields, indent=2) + "\n"

    def engine_entries(self) -> dict[int, dict[str, int | bool] | None]:
        """Return the entries as the engine's launcher takes them from its loader."""
        fields = fields_of(self.problem.block)
        return {size: entry_json(self.entries[size], fields) for size in sorted(self.entries)}

    def path_under(self, root: Path) -> Path:
        """Return the path of the file under a root."""
        name = gemm_file_name(self.problem, self.device)
        return root / FOLDER / version_folder(self.triton) / name


def gemm_file_name(problem: DenseGemm, device_name: str) -> str:
    """Return a file's name. A server that asks for a file does not know the type of the output."""
    spec = replace(problem, out=Dtype.BFLOAT16).spec()
    return f"{spec.replace(':', ',', 1)},device_name={device_name}.json"


def gemm_root(environ: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return the variable that names a root of GEMM files, and the root; None if no variable is
    set.
    """
    for variable in (CONFIG_DIR_VARIABLE, OVERLAY_VARIABLE):
        if environ.get(variable):
            return variable, Path(environ[variable])
    return None


def find_gemm_files(root: Path) -> list[Path]:
    """Return the sorted paths of all files under a root, for any Triton version. No file is
    opened.
    """
    return sorted((root / FOLDER).glob("triton_*/*.json"))


def read_gemm_file(path: Path) -> GemmFile:
    """Read a file. Raises MalformedConfigFile, which names the file and the fault."""
    data = read_data(path, "GEMM file")
    try:
        return _file(parse_fields(data))
    except (MalformedConfigFile, BadProblem) as error:
        raise MalformedConfigFile(f"{path}: {error}") from None


def _file(fields: Mapping[str, Any]) -> GemmFile:
    spec = text_field(fields, "problem")
    if spec.partition(":")[0] not in DENSE_GEMMS:
        raise MalformedConfigFile(f"{spec[:200]!r} is no dense GEMM")
    problem = parse_dense_gemm(spec)
    rows = fields.get("entries")
    if not isinstance(rows, dict) or not rows:
        raise MalformedConfigFile("it holds no entries")
    entries: dict[int, Config] = {}
    statuses: dict[int, Status] = {}
    for key, row in rows.items():
        if not isinstance(row, dict):
            raise MalformedConfigFile(f"key {key!r} must hold an object")
        size, config = parse_entry(key, row.get("config"), fields_of(problem.block))
        _check_split(key, config)
        known = {status.value: status for status in STATUSES}
        entries[size] = config
        statuses[size] = known[choice_field(row, "status", known, f"key {key!r}")]
    texts = {name: text_field(fields, name) for name in _TEXTS}
    ordered = {size: entries[size] for size in sorted(entries)}
    return GemmFile(problem, **texts, entries=ordered, statuses=statuses)


def _check_split(key: str, config: Config) -> None:
    split = config.get("SPLIT_K", 1)
    if split & (split - 1):  # the engine stops at it
        raise MalformedConfigFile(f"key {key!r}: SPLIT_K must be a power of two, not {split}")
