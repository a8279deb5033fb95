"""The fused-MoE config files that an engine ships."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tuner.engines.config_files import ConfigFile, EntryFields, read_lenient
from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.engine import FileKey, ShippedFile
from tuner.problems.triton import folder_version


def shipped_files(
    configs: Path, read_name: Callable[[str], FileKey], fields: EntryFields
) -> Iterator[ShippedFile]:
    """The files below a folder, sorted by path. Other kernels' files are skipped."""
    for path in sorted(configs.rglob("*.json")):
        try:
            key = read_name(path.name)
        except MalformedConfigFile:
            continue
        yield _read(path, key, configs, fields)


def _read(path: Path, key: FileKey, configs: Path, fields: EntryFields) -> ShippedFile:
    try:
        file = read_lenient(path, fields)
    except MalformedConfigFile as error:
        file = ConfigFile(path, {}, (str(error),))
    triton = folder_version(path.parent.name) if path.parent != configs else None
    return ShippedFile(path, key, triton, file.entries, file.oddities)
