"""Checks of the model's folder on each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tuner.deploy.preflight.facts import Finding, Node, Severity

_MOST_FAULTS = 12


def check_weights(node: Node) -> Iterator[Finding]:
    """An error where files of the model's folder are missing, cut off or damaged."""
    weights = node.weights
    if weights and weights.faults:
        shown = weights.faults[:_MOST_FAULTS]
        more = len(weights.faults) - len(shown)
        yield node.error(
            "weights-damaged",
            f"{len(weights.faults)} faults in the model's folder {weights.path}",
            "download these files again, e.g. hf download NAME --local-dir " + weights.path,
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
