"""Read and write the JSON files in which engines keep launch configurations.

A file maps batch sizes (whole numbers, as strings) to configurations. Engines check nothing beyond
`json.load` and `int(key)`, so a bad file fails late, inside a kernel launch. The sidecars of
exported files tell which files in an engine's package this program wrote.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.devices.target import CUDA, HIP
from tuner.errors import MalformedConfigFile, did_you_mean
from tuner.files import read_limited
from tuner.problems.points import TRITON_DEFAULTS, Config, triton_defaults

REQUIRED_FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
# Launch options besides the kernel's parameters. Engines pass every key of an entry to the launch,
# and Triton refuses an option there that the GPU's own compiler does not have.
LAUNCH_OPTIONS = (*TRITON_DEFAULTS, "num_ctas", "maxnreg")
AMD_OPTIONS = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
# Options whose value may be 0, with which the compiler chooses.
ZERO_OPTIONS = frozenset({"waves_per_eu", "matrix_instr_nonkdim"})
FIELDS = (*REQUIRED_FIELDS, *LAUNCH_OPTIONS, "USE_TMA", *AMD_OPTIONS)  # in the order engines write

_UNTYPED_BLOCKS = re.compile(r"E=\d+,N=\d+,device_name=[^,]+,block_shape=\[[^\]]*\].*\.json")


def misnamed(name: str) -> str:
    """Say why no engine asks for a file of this name, if the name lacks a part; "" if it lacks
    none.
    """
    if not _UNTYPED_BLOCKS.fullmatch(name):
        return ""
    return (
        f"no server looks for {name}: it has block_shape and no dtype, and 16-bit weights have no "
        "blocks; the names of block-wise fp8 have dtype=fp8_w8a8 before block_shape"
    )


@dataclass(frozen=True)
class EntryFields:
    """The fields that a kernel's entries have."""

    required: tuple[str, ...]
    names: tuple[str, ...]  # all of them, in the order engines write
    flags: frozenset[str] = frozenset()  # true or false in a file, and 1 or 0 in a Config
    zero: frozenset[str] = frozenset()  # may be 0; all others are at least 1
    # Whether a file may have null for a size, at which the engine runs another kernel. It is an
    # empty Config here.
    null: bool = False
    aside: frozenset[str] = frozenset()  # keys of a file that are no batch sizes, and are not read


TILES = EntryFields(REQUIRED_FIELDS, FIELDS, flags=frozenset({"USE_TMA"}), zero=ZERO_OPTIONS)

_MAX_BYTES = 1 << 20  # the largest file shipped is under 20 kB
_MAX_VALUE = 1 << 20  # far above any block, group or batch size


@dataclass(frozen=True)
class ConfigFile:
    """An engine's config file as read; `entries` keeps the file's order, which settles ties."""

    path: Path
    entries: Mapping[int, Config]
    oddities: tuple[str, ...] = ()  # faults for which `read_config_file` refuses a file


class _Object(list[tuple[str, object]]):
    """A JSON object as a list of pairs, which keeps repeated keys."""


def read_config_file(path: Path, fields: EntryFields = TILES) -> ConfigFile:
    """Read a user's file strictly.

    Raises MalformedConfigFile for anything an engine would stumble over at launch.
    """
    file = read_lenient(path, fields)
    if file.oddities:
        raise MalformedConfigFile(f"{path}: {file.oddities[0]}")
    return file


def read_lenient(path: Path, fields: EntryFields = TILES) -> ConfigFile:
    """Read a file as engines do, and list its faults in `oddities`.

    Raises MalformedConfigFile for content that no kernel could be launched with.
    """
    entries: dict[int, Config] = {}
    oddities: list[str] = []
    for key, row in _read_object(path):
        if key in fields.aside:
            continue
        try:
            batch_size = _batch_size(key)
            if batch_size in entries:
                raise MalformedConfigFile(f"key {key!r} is given twice")
            values = {} if row is None and fields.null else _whole_values(key, row, fields)
        except MalformedConfigFile as error:
            raise MalformedConfigFile(f"{path}: {error}") from None
        oddities += _oddities(key, values, fields)
        entries[batch_size] = Config(values)
    if not entries:
        oddities.append("it holds no batch sizes")
    return ConfigFile(path, entries, tuple(oddities))


def read_written(path: Path, fields: EntryFields, own: Container[int]) -> Mapping[int, Config]:
    """Read the entries of a file that was written; raises MalformedConfigFile.

    Read strictly, except at the sizes `own`, which hold the engine's own entries as they are.
    """
    entries = read_lenient(path, fields).entries
    for size, config in entries.items():
        if size not in own:
            parse_entry(str(size), entry_json(config, fields), fields)
    return entries


def read_any_fields(path: Path, fields: EntryFields) -> ConfigFile:
    """Read a user's file strictly, but keep fields with other names."""
    more = {n for e in read_lenient(path, fields).entries.values() for n in e} - {*fields.names}
    return read_config_file(path, replace(fields, names=(*fields.names, *sorted(more))))


def parse_entry(key: str, row: object, fields: EntryFields = TILES) -> tuple[int, Config]:
    """Read an entry of parsed JSON strictly: return (batch size, configuration).

    Raises MalformedConfigFile, which names the key.
    """
    size = _batch_size(key)
    pairs = _Object(row.items()) if isinstance(row, dict) else row
    values = {} if row is None and fields.null else _whole_values(key, pairs, fields)
    for oddity in _oddities(key, values, fields):
        raise MalformedConfigFile(oddity)
    return size, Config(values)


def config_file_text(entries: Mapping[int, Config], fields: EntryFields = TILES) -> str:
    """Write the JSON that engines read: sizes ascending, fields in their order, flags as true."""
    rows = {str(size): entry_json(entries[size], fields) for size in sorted(entries)}
    return json.dumps(rows, indent=4) + "\n"


def entry_json(config: Config, fields: EntryFields = TILES) -> dict[str, int | bool] | None:
    """Return an entry as engines write it; None for an empty configuration if a file
    may have null.
    """
    if fields.null and not config:
        return None
    known = fields.names
    names = sorted(config, key=lambda name: known.index(name) if name in known else len(known))
    return {name: bool(config[name]) if name in fields.flags else config[name] for name in names}


def nearest_entry(entries: Mapping[int, Config], batch_size: int) -> Config:
    """Return the entry of the nearest batch size; of two equally near, the first in the file."""
    return entries[min(entries, key=lambda size: abs(size - batch_size))]


def launch_config(config: Config, platform: str = CUDA) -> Config:
    """Fill in Triton's defaults (4 warps, and 3 stages or 2 on HIP)."""
    return Config({**triton_defaults(platform), **config})


def launch_options(platform: str) -> tuple[str, ...]:
    """Return the launch options that Triton's compiler for "cuda" or "hip" has."""
    amd = (*TRITON_DEFAULTS, "num_ctas", *AMD_OPTIONS)
    return amd if platform == HIP else LAUNCH_OPTIONS


def fields_on(fields: EntryFields, platform: str) -> EntryFields:
    """Return the fields without options that Triton's compiler for "cuda" or "hip" lacks."""
    lacking = {*LAUNCH_OPTIONS, *AMD_OPTIONS} - {*launch_options(platform)}
    return replace(fields, names=tuple(name for name in fields.names if name not in lacking))


def _read_object(path: Path) -> _Object:
    data = read_limited(path, _MAX_BYTES, "engine config file", MalformedConfigFile)
    if not data.strip():
        raise MalformedConfigFile(f"{path}: the file is empty")
    try:
        tree = json.loads(data.decode(), object_pairs_hook=_Object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedConfigFile(f"{path}: not JSON: {error}") from None
    if not isinstance(tree, _Object):
        raise MalformedConfigFile(f"{path}: must be an object of batch sizes, not {_kind(tree)}")
    return tree


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON value")


def _batch_size(key: str) -> int:
    # int() also reads " 1_0", "-5" and "007"; two spellings of one size must not both be kept.
    if not (key.isascii() and key.isdigit() and len(key) <= 7 and str(int(key)) == key):
        raise MalformedConfigFile(f"key {key!r} is not a batch size (a whole number)")
    if not 1 <= int(key) <= _MAX_VALUE:
        raise MalformedConfigFile(f"key {key!r} is not from 1 to {_MAX_VALUE}")
    return int(key)


def _whole_values(key: str, row: object, fields: EntryFields) -> dict[str, int]:
    if not isinstance(row, _Object):
        raise MalformedConfigFile(f"key {key!r} must hold a configuration, not {_kind(row)}")
    values: dict[str, int] = {}
    for name, value in row:
        where = f"key {key!r}: field {name!r}"
        if name in values:
            raise MalformedConfigFile(f"{where} is given twice")
        if isinstance(value, bool) != (name in fields.flags) or not isinstance(value, int):
            want = "true or false" if name in fields.flags else "a whole number"
            raise MalformedConfigFile(f"{where} must be {want}, not {_kind(value)}")
        values[name] = value
    missing = [name for name in fields.required if name not in values]
    if missing:
        raise MalformedConfigFile(f"key {key!r}: lacks field {', '.join(map(repr, missing))}")
    return values


def _oddities(key: str, values: Mapping[str, int], fields: EntryFields) -> Iterator[str]:
    for name, value in values.items():
        if name in AMD_OPTIONS and name not in fields.names:
            yield f"key {key!r}: {name!r} is an option of AMD's compiler, and the GPU is not AMD's"
        elif name not in fields.names:
            yield f"key {key!r}: unknown field {name!r}{did_you_mean(name, fields.names)}"
        elif name not in fields.flags and not _least(name, fields) <= value <= _MAX_VALUE:
            least = _least(name, fields)
            yield f"key {key!r}: field {name!r} must be from {least} to {_MAX_VALUE}, not {value}"
    # Entries without both num_warps and num_stages ask for Triton's defaults: sglang's heuristic
    # and some shipped files have them. An entry with only one of the two is a mistake, if entries
    # may have both.
    missing = [name for name in TRITON_DEFAULTS if name not in values]
    if len(missing) == 1 and missing[0] in fields.names:
        yield f"key {key!r}: lacks field {missing[0]!r}"


def _least(name: str, fields: EntryFields) -> int:
    return 0 if name in fields.zero else 1


def _kind(value: object) -> str:
    if isinstance(value, _Object):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


PROVENANCE = "provenance"  # the sidecars' folder under a root


def read_sidecar(path: Path, sidecar: Path) -> Mapping[str, Any] | None:
    """Read a sidecar; None if there is none, or the file has changed since."""
    try:
        data = path.read_bytes()
        provenance = json.loads(sidecar.read_text(encoding="utf-8"))
        described = provenance["sha256"] == hashlib.sha256(data).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return provenance if described and isinstance(provenance, dict) else None


def sidecar_of(path: Path) -> Path | None:
    """Return the sidecar of an exported file; None if it has none.

    The sidecar of ROOT/configs/triton_3_6_0/NAME is ROOT/provenance/triton_3_6_0/NAME. The sidecar
    of ROOT/attention/triton_3_6_0/NAME is below ROOT/provenance/attention, and the sidecar of
    vLLM's ROOT/NAME is ROOT/provenance/NAME.
    """
    for depth, root in enumerate(path.parents[:3], start=1):
        sidecars = root / PROVENANCE
        if not sidecars.is_dir():  # so with nearly all of the hundreds of files of an engine
            continue
        for below in (path.parts[-depth:], path.parts[-depth:][1:]):
            if (found := sidecars.joinpath(*below)).is_file():
                return found
    return None


def provenance_of(path: Path) -> Mapping[str, Any]:
    """Return the fields of a file's sidecar; none if there is none, or if it cannot be read."""
    found = sidecar_of(path)
    try:
        value = json.loads(found.read_bytes()) if found else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def entries_of(provenance: Mapping[str, Any]) -> list[Any]:
    """Return the entries of a sidecar's fields, which have them by size or in a list."""
    entries = provenance.get("entries")
    entries = list(entries.values()) if isinstance(entries, dict) else entries
    return entries if isinstance(entries, list) else []


def environments_of(provenance: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the environments of the entries in which a sidecar's fields have them."""
    for row in entries_of(provenance):
        environment = row.get("environment") if isinstance(row, dict) else None
        if isinstance(environment, dict):
            yield environment


def kept_file(sidecar: Path) -> Path:
    """Return the path at which an export keeps the engine's file that it replaces.

    The name does not end in .json because all .json files there are sidecars.
    """
    return sidecar.with_name(f"{sidecar.name}.shipped")


def shipped_at(path: Path) -> Path | None:
    """Return the file that an engine ships at a path of its package; None if it ships none.

    If this program's file lies at the path, return the kept file.
    """
    if not path.exists():  # most paths, and to look for their sidecars takes long
        return None
    sidecar = sidecar_of(path)
    if sidecar and read_sidecar(path, sidecar):
        path = kept_file(sidecar)
    return path if path.exists() else None
