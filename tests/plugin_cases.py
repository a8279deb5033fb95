"""The plugin's files and the server that reads them, as several test files build them."""

from pathlib import Path

from tuner.bindings.sglang.plugin.file_checks import RuntimeFacts
from tuner.bindings.sglang.plugin.files import AttentionFile
from tuner.bindings.sglang.plugin.gemm_files import GemmFile
from tuner.problems.results import Status

_HERE = {
    **{"device": "NVIDIA_H200", "engine": "sglang", "engine_version": "0.5.16"},
    **{"triton": "3.6.0", "kernel_hash": "known"},
}


def attention_file(problem, entries, **changes) -> AttentionFile:
    fields = {**_HERE, "server_flags": {}, **changes}
    return AttentionFile(problem, entries=tuple(entries), **fields)


def gemm_file(problem, entries, statuses=None, **changes) -> GemmFile:
    """A file whose entries were measured, unless `statuses` says otherwise."""
    statuses = statuses or dict.fromkeys(entries, Status.OK)
    return GemmFile(problem, **{**_HERE, **changes}, entries=entries, statuses=statuses)


def here(**changes) -> RuntimeFacts:
    """A server for which those files were made."""
    told = {name: value for name, value in _HERE.items() if name != "kernel_hash"}
    return RuntimeFacts(**{**told, "kernel_hashes": lambda: ("known",), **changes})


def put(root: Path, file: AttentionFile | GemmFile) -> Path:
    """Write a file where the plugin looks for it."""
    path = file.path_under(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text())
    return path
