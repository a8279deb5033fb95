"""Write and read the files that carry tuned attention to a server: an export writes them, the
plugin reads them.

Their path is `<root>/attention/triton_3_6_0/<problem>,device_name=NVIDIA_H200.json`. This module
needs only the standard library, because it runs inside a server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.plugin.json_fields import (
    FORMAT,
    SPLITS_FORMAT,
    STATUSES,
    choice_field,
    parse_fields,
    read_data,
    text_field,
    whole_field,
)
from tuner.bindings.sglang.plugin.kernels import CHOICES, FLAGS
from tuner.bindings.sglang.plugin.splits import SplitsTable, read_splits
from tuner.errors import BadProblem, MalformedConfigFile, did_you_mean
from tuner.export.file_checks import SERVED_OCTAVES
from tuner.families.attention.problem import Attention, AttentionPart, BucketKey
from tuner.problems.points import Config, version_folder
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

FOLDER = "attention"
CONFIG_DIR_VARIABLE = "TUNER_ATTENTION_CONFIG_DIR"
OVERLAY_VARIABLE = "SGLANG_MOE_CONFIG_DIR"  # sglang's; attention/ lies beside MoE's configs/

# Only grouped heads have BLOCK_H, and only latent attention has HAS_MLA.
_OPTIONAL = ("BLOCK_H", "HAS_MLA")


@dataclass(frozen=True)
class AttentionEntry:
    """The launch constants for a bucket: a part at a batch size and a length."""

    part: AttentionPart
    batch_size: int  # sequences
    new_tokens: int  # of the longest sequence; 1 for decode and reduce
    config: Config
    status: Status  # OK (measured), PREDICTED, or INCUMBENT (the engine's own constants stay)
    shared_bytes: int | None = None  # a block's shared memory, as compiled

    @property
    def bucket(self) -> BucketKey:
        return self.part, self.batch_size, self.new_tokens


@dataclass(frozen=True)
class AttentionFile:
    """The tuned entries of a problem on a kind of GPU, and the software they are for."""

    problem: Attention
    device: str  # e.g. NVIDIA_H200
    engine: str  # e.g. sglang
    engine_version: str
    triton: str
    kernel_hash: str  # of all of the engine's attention kernels, as lifted
    entries: tuple[AttentionEntry, ...]
    server_flags: Mapping[str, int | str]  # a server needs these flags to use the entries
    splits: SplitsTable | None = None  # of a decode problem that chooses its splits

    def text(self) -> str:
        """Return the file's JSON; `read_attention_file` reads it back."""
        fields: dict[str, Any] = {
            "format": SPLITS_FORMAT if self.splits else FORMAT,
            "problem": self.problem.spec(),
            "device": self.device,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "triton": self.triton,
            "kernel_hash": self.kernel_hash,
            "entries": [_entry_fields(entry) for entry in self.entries],
            "server_flags": dict(self.server_flags),
        }
        if self.splits:
            fields["kv_splits"] = self.splits.as_json()
        return json.dumps(fields, indent=2) + "\n"

    @property
    def title(self) -> str:
        return title(self.problem)

    @property
    def predicted(self) -> bool:
        """Say whether entries were predicted, and none was measured."""
        statuses = {entry.status for entry in self.entries}
        return Status.PREDICTED in statuses and Status.OK not in statuses

    def path_under(self, root: Path) -> Path:
        """Return the path of the file under a root."""
        name = file_name(self.problem, self.device)
        return root / FOLDER / version_folder(self.triton) / name

    def configs(self, part: AttentionPart) -> list[Config]:
        """Return the distinct tuned configurations of a part, without the engine's own."""
        tuned = (e for e in self.entries if e.part is part and e.status is not Status.INCUMBENT)
        return list(dict.fromkeys(entry.config for entry in tuned))

    def pick(
        self, part: AttentionPart, batch_size: int, new_tokens: int = 1
    ) -> AttentionEntry | None:
        """Return the entry of the nearest bucket by the ratio of sizes; of two equally near, the
        smaller.

        None if the file has no entry for that part near these sizes.
        """

        def distance(entry: AttentionEntry) -> tuple[float, int, int]:
            apart = abs(math.log2(entry.batch_size / batch_size))
            apart += abs(math.log2(entry.new_tokens / new_tokens))
            return apart, entry.batch_size, entry.new_tokens

        entries = [entry for entry in self.entries if entry.part is part]
        near = [entry for entry in entries if distance(entry)[0] <= SERVED_OCTAVES]
        return min(near, key=distance, default=None)


def title(problem: Attention) -> str:
    """Return a short text for a problem, such as `extend 16/1 576/512 bfloat16`."""
    text = f"{problem.phase.value} {problem.q_heads}/{problem.kv_heads} {problem.Lq}/{problem.Lv}"
    words = [text, problem.dtype.value]
    words += [f"pages of {problem.page_size}"] if problem.page_size > 1 else []
    words += [f"{problem.kv_splits} splits"] if problem.kv_splits else []
    words += [f"window {problem.window}"] if problem.window else []
    words += ["sinks"] if problem.sinks else []
    words += [f"logit cap {problem.logit_cap:g}"] if problem.logit_cap else []
    return " ".join(words)


def file_name(problem: Attention, device_name: str) -> str:
    return f"{problem.spec().replace(':', ',', 1)},device_name={device_name}.json"


def attention_root(environ: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return the variable that names a root of attention files, and the root; None if no variable
    is set.
    """
    for variable in (CONFIG_DIR_VARIABLE, OVERLAY_VARIABLE):
        if environ.get(variable):
            return variable, Path(environ[variable])
    return None


def find_attention_files(root: Path) -> list[Path]:
    """Return the sorted paths of all files under a root, for any Triton version. No file is
    opened.
    """
    return sorted((root / FOLDER).glob("triton_*/*.json"))


def read_attention_file(path: Path) -> AttentionFile:
    """Read a file. Raises MalformedConfigFile, which names the file and the fault."""
    data = read_data(path, "attention file")
    try:
        return _file(parse_fields(data, (FORMAT, SPLITS_FORMAT)))
    except (MalformedConfigFile, BadProblem) as error:
        raise MalformedConfigFile(f"{path}: {error}") from None


def _entry_fields(entry: AttentionEntry) -> dict[str, Any]:
    return {
        "part": entry.part.value,
        "batch_size": entry.batch_size,
        "new_tokens": entry.new_tokens,
        "config": dict(entry.config),
        "status": entry.status.value,
        "shared_bytes": entry.shared_bytes,
    }


def _file(fields: dict[str, Any]) -> AttentionFile:
    problem = parse_problem(text_field(fields, "problem"))
    if not isinstance(problem, Attention):
        raise MalformedConfigFile(f"{problem.spec()} is no attention problem")
    rows = fields.get("entries")
    if not isinstance(rows, list) or not rows:
        raise MalformedConfigFile("it holds no entries")
    entries = tuple(_entry(problem, number, row) for number, row in enumerate(rows))
    if len({entry.bucket for entry in entries}) < len(entries):
        raise MalformedConfigFile("two entries are for the same part and size")
    names = ("device", "engine", "engine_version", "triton", "kernel_hash")
    splits = _splits(problem, fields, entries)
    return AttentionFile(
        problem,
        **{name: text_field(fields, name) for name in names},
        entries=entries,
        server_flags=_flags(fields.get("server_flags", {})),
        splits=splits,
    )


def _splits(
    problem: Attention, fields: dict[str, Any], entries: tuple[AttentionEntry, ...]
) -> SplitsTable | None:
    """Return the table, which a file in the second format must have. Raises MalformedConfigFile."""
    if fields["format"] == FORMAT:
        # The first format wrote the number of splits into the problem's name.
        if problem.chooses_splits:
            raise MalformedConfigFile(f"{problem.spec()} needs a table of KV splits")
        return None
    if not problem.chooses_splits:
        raise MalformedConfigFile(f"{problem.spec()} has no table of KV splits")
    table = read_splits(fields.get("kv_splits"))
    sizes = {entry.batch_size for entry in entries}
    if sizes != {row.batch_size for row in table.rows}:
        raise MalformedConfigFile("kv_splits and entries are for different batch sizes")
    return table


def _entry(problem: Attention, number: int, row: object) -> AttentionEntry:
    if not isinstance(row, dict):
        raise MalformedConfigFile(f"entry {number} must be an object")
    where = f"entry {number}"
    parts = {part.value: part for part in problem.parts}
    statuses = {status.value: status for status in STATUSES}
    part = parts[choice_field(row, "part", parts, where)]
    shared = row.get("shared_bytes")
    return AttentionEntry(
        part,
        whole_field(row, "batch_size", where),
        whole_field(row, "new_tokens", where),
        _config(problem, part, row.get("config"), f"{where}: config"),
        statuses[choice_field(row, "status", statuses, where)],
        None if shared is None else whole_field(row, "shared_bytes", where, least=0),
    )


def _config(problem: Attention, part: AttentionPart, row: object, where: str) -> Config:
    if not isinstance(row, dict):
        raise MalformedConfigFile(f"{where} must be an object")
    keys = [k for k in CHOICES[part] if _has(problem, k)]
    for name in row:
        if name not in keys:
            raise MalformedConfigFile(f"{where}: unknown {name!r}{did_you_mean(str(name), keys)}")
    missing = [k for k in keys if k not in row and k not in _OPTIONAL]
    if missing:
        raise MalformedConfigFile(f"{where} lacks {', '.join(missing)}")
    values = {n: whole_field(row, n, where, least=0 if n in FLAGS else 1) for n in row}
    for name, value in values.items():
        if name in FLAGS and value > 1:
            raise MalformedConfigFile(f"{where}: {name} must be 0 or 1, not {value}")
        if name != "num_stages" and value & (value - 1):
            raise MalformedConfigFile(f"{where}: {name} must be a power of two, not {value}")
    heads = values.get("BLOCK_H", problem.group)
    if not problem.shares_keys_in(heads):
        raise MalformedConfigFile(
            f"{where}: BLOCK_H={heads} does not divide the {problem.group} heads that share a key"
        )
    return Config(values)


def _has(problem: Attention, key: str) -> bool:
    """Say whether the problem's kernel takes a constant."""
    return problem.shares_kv if key in FLAGS else key not in _OPTIONAL or problem.group > 1


def _flags(row: object) -> dict[str, int | str]:
    if not isinstance(row, dict):
        raise MalformedConfigFile("server_flags must be an object")
    for name, value in row.items():
        if not name.startswith("--") or isinstance(value, bool) or not isinstance(value, int | str):
            raise MalformedConfigFile(f"server_flags: {name!r} is no flag with a value")
    return row
