"""Read and check what a model's folder holds: its safetensors files and its index.

No tensor is read. A safetensors file is 8 bytes with the header's length, a JSON header that names
each tensor with its place, and the tensors; so the header says how long the file must be.
Format: github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.deploy.preflight.facts import Finding, Node, Severity
from tuner.shell import command_line

INDEX = "model.safetensors.index.json"
LARGEST_HEADER = 100 * 2**20  # bytes; the format's own limit
LARGEST_INDEX = 64 * 2**20  # bytes
_PARTIAL = (".incomplete", ".aria2", ".part", ".tmp", ".crdownload", ".lock")


def describe_weights(folder: Path) -> dict[str, Any]:
    """The faults of a model's folder and a digest of its files, as JSON values.

    `digest` covers names, sizes and headers, so equal folders have equal digests.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        return {"path": str(folder), "faults": [f"{folder} cannot be read: {error.strerror}"]}
    shards = [name for name in names if name.endswith(".safetensors")]
    faults = [f"{name}: a download did not end" for name in names if name.endswith(_PARTIAL)]
    if "config.json" not in names:
        faults.append("config.json is missing")
    digest = hashlib.sha256()
    tensors: dict[str, set[str]] = {}
    for name in shards:
        header, fault = read_header(folder / name)
        faults += [f"{name}: {fault}"] if fault else []
        tensors[name] = {tensor for tensor in header if tensor != "__metadata__"}
        size = (folder / name).stat().st_size
        digest.update(f"{name} {size} {json.dumps(header, sort_keys=True)}\n".encode())
    faults += _index_faults(folder, tensors, INDEX in names)
    return {
        "path": str(folder),
        "shards": len(shards),
        "tensors": sum(map(len, tensors.values())),
        "bytes": sum((folder / name).stat().st_size for name in shards),
        "digest": digest.hexdigest(),
        "faults": faults,
    }


def read_header(path: Path) -> tuple[dict[str, Any], str]:
    """(the header of a safetensors file, its fault or an empty string)."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, LARGEST_HEADER):
                return {}, f"{size} bytes are too few for its header: download it again"
            header = json.loads(file.read(length))
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except OSError as error:
        return {}, f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return {}, "its header is damaged: download it again"
    wanted = 8 + length + max(ends, default=0)
    if wanted == size:
        return header, ""
    state = "cut off" if size < wanted else "too long"
    return header, f"{state}: {size} bytes, and its header asks for {wanted}: download it again"


def _index_faults(folder: Path, tensors: dict[str, set[str]], indexed: bool) -> list[str]:
    if not indexed:
        if len(tensors) == 1:
            return []
        what = "no safetensors file is there" if not tensors else f"{INDEX} is missing"
        return [what]
    try:
        with (folder / INDEX).open("rb") as file:
            index = json.loads(file.read(LARGEST_INDEX))
        placed = {str(name): str(shard) for name, shard in index["weight_map"].items()}
    except OSError as error:
        return [f"{INDEX} cannot be read: {error.strerror}"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{INDEX} is damaged: download it again"]
    faults = []
    for shard in sorted(set(placed.values())):
        if shard not in tensors:
            faults.append(f"{shard}: named in {INDEX}, and missing")
            continue
        wanted = {name for name, place in placed.items() if place == shard}
        absent = sorted(wanted - tensors[shard])
        if absent:
            faults.append(f"{shard}: lacks {len(absent)} tensors of {INDEX}, e.g. {absent[0]}")
    return faults


_MOST_FAULTS = 12


def check_weights(node: Node) -> Iterator[Finding]:
    """An error where files of the model's folder are missing, cut off or damaged."""
    weights = node.weights
    if weights and weights.faults:
        shown = weights.faults[:_MOST_FAULTS]
        more = len(weights.faults) - len(shown)
        again = command_line("hf", "download", "NAME", "--local-dir", weights.path)
        yield node.error(
            "weights-damaged",
            f"{len(weights.faults)} faults in the model's folder {weights.path}",
            f"download these files again, e.g. `{again}`",
            (*shown, *([f"and {more} more"] if more else [])),
        )


def check_equal_weights(nodes: Sequence[Node]) -> Iterator[Finding]:
    """An error where nodes have different files of the model."""
    digests = {n.name: n.weights.digest for n in nodes if n.weights and n.weights.digest}
    if len(set(digests.values())) < 2:
        return
    usual = Counter(digests.values()).most_common(1)[0][0]
    odd = tuple(name for name, digest in digests.items() if digest != usual)
    yield Finding(
        Severity.ERROR,
        "weights-differ",
        odd,
        "the model's files differ between nodes",
        "copy the model's folder from one node to all of them",
        tuple(f"{name}: {digest[:16]}" for name, digest in digests.items()),
    )
