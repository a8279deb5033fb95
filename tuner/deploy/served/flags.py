"""The tuned files of a folder, and what the server with the files is started with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.deploy.load_proof import read_deployed
from tuner.devices.table import Device
from tuner.engines.dispatch import flags_of, of_class
from tuner.errors import BadInput
from tuner.export.advice import EngineRelease, Verdict, advise_all
from tuner.export.files import PROVENANCE
from tuner.export.selection import with_shipped
from tuner.problems.results import Winner


def tuned_files(root: Path, device: str) -> dict[str, bytes]:
    """The tuned files for a device under a folder that `tuner export` wrote, by their paths.

    Raises BadInput where there is none.
    """
    paths = read_deployed(root).tuned if root.is_dir() else {}
    mine = [path for path in paths if f"device_name={device}" in path]
    if not mine:
        raise BadInput(
            f"nothing exported for {device} under {root}: run `tuner export --device {device}` "
            "first, or name its folder with --out"
        )
    return {path: (root / path).read_bytes() for path in mine}


def exported_problems(root: Path) -> frozenset[str]:
    """The problems whose files are under a folder, as their sidecars name them."""
    specs = set()
    for path in (root / PROVENANCE).rglob("*.json"):
        try:
            specs.add(str(json.loads(path.read_bytes())["problem"]))
        except (ValueError, KeyError, TypeError):
            continue  # no sidecar of this tool
    return frozenset(specs)


def files_hash(files: Mapping[str, bytes]) -> str:
    """The sha256 of the files' paths and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path} {hashlib.sha256(files[path]).hexdigest()}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Advised:
    """What the stored times of the exported problems advise, besides the files."""

    flags: Mapping[str, str] = field(default_factory=dict)  # "": to be left out
    notes: Sequence[str] = ()  # problems whose files no server reads as it is started

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in self.flags.items() if not _is_flag(name)}

    def added_to(self, words: Sequence[str]) -> list[str]:
        """The words of a command line, with these flags in place of what they say of them."""
        mine = {name: value for name, value in self.flags.items() if _is_flag(name)}
        given = [word for name, value in mine.items() if value for word in (name, value)]
        return [*_without(words, mine), *given]


def advised_for(
    exported: Collection[str],
    winners: Sequence[Winner],
    device: Device,
    engine: EngineRelease,
    words: Sequence[str],
    architecture: str = "",
) -> Advised:
    """What is advised for servers of an engine that are started with these words.

    `exported` are the texts of the problems that have files, and `winners` are theirs;
    `architecture` is the class of the model, where it is known.
    """
    flags: dict[str, str] = {}
    notes: list[str] = []
    if winners:
        flags_given = of_class(flags_of(words), architecture)
        for one in advise_all(with_shipped(winners), device, engine, flags_given):
            if one.verdict is Verdict.LEAVE:
                notes.append(f"files that are not advised for these servers: {one}")
            flags |= one.flags
    unknown = len(exported) - len({winner.problem for winner in winners})
    if unknown:
        notes.append(
            f"the store has no times of {unknown} of {len(exported)} exported problems, so nothing "
            "is advised for these: --after-args can give the flags that their files need"
        )
    return Advised(flags, tuple(notes))


def _is_flag(name: str) -> bool:
    return name.startswith("--")


def _without(words: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    """The words that are neither one of the flags nor its value."""
    dropping = False
    for word in words:
        name, equals, _ = word.partition("=")
        dropping = name in flags if _is_flag(name) else dropping
        if not dropping:
            yield word
        dropping = dropping and _is_flag(name) and not equals
