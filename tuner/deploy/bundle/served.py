"""What servers gained from a bundle's files, where that was proven."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.deploy.bundle.archive import BundleFile
from tuner.deploy.bundle.configs import ConfigFolder
from tuner.deploy.served.files import files_hash
from tuner.deploy.served.report import report_text

NAME = "served-proof.txt"


def served_files(
    proofs: Iterable[Mapping[str, Any]], folder: ConfigFolder
) -> tuple[dict[str, BundleFile], list[str]]:
    """(the file with the proofs of exactly these tuned files, a note for each); `proofs` are the
    reports of `tuner prove --server`.
    """
    mine = files_hash({tuned.path: folder.files[tuned.path] for tuned in folder.tuned})
    found = [proof for proof in proofs if proof["files"] == mine]
    if not found:
        return {}, []
    text = "\n\n".join(map(report_text, found)) + "\n"
    notes = [f"{NAME}: {proof['model']}: {proof['verdict']}" for proof in found]
    return {NAME: BundleFile(text.encode())}, notes
