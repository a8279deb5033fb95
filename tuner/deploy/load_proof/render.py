"""Render a proof as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuner.deploy.load_proof.deployed import FileOrigin
from tuner.deploy.load_proof.proof import FileLoad, LoadOutcome, LoadProof
from tuner.engines.logs.nccl import Network
from tuner.render import printable


def render_proof(proof: LoadProof) -> str:
    """Return the proof as text for a terminal."""
    lines = []
    if all(load.by_plugin for load in proof.loads):
        lines.append("no config file's message is in this log: the kernel was not reached yet, or")
        lines.append("the log level hides it (files that load are logged at INFO)")
    for load in proof.loads:
        known = load.outcome is LoadOutcome.LOADED and load.origin not in ("", "unknown")
        state = load.origin if known else load.outcome.value
        if known and proof.deployed.own and load.origin == FileOrigin.TUNED.value:
            state = "exported"
        lines.append(f"{state:15} {load.family:11} {load.name}")
        lines += [f"{'':16}{text}" for text in _details(load)]
    for override in proof.overrides:
        lines.append(
            f"{'override':15} M={override.batch_size}: down BLOCK_SIZE_M "
            f"{override.down_block_m} -> {override.up_block_m}, the up file's"
        )
    for hook in proof.hooks:
        state = f"{hook.count} hook(s), from {hook.sources}" if hook.count else "FAILED"
        lines.append(f"{'plugin':15} {hook.target}: {state}")
    lines += _network(proof.network)
    lines.append(f"{'ready':15} {proof.ready or 'no line says so'}")
    lines += [f"{'note':15} {note}" for note in proof.notes()]
    lines += list(_steps(proof))
    problems = proof.problems()
    lines += [f"{'problem':15} {problem}" for problem in problems]
    lines.append(_verdict(proof, problems))
    return "\n".join(printable(line) for line in lines) + "\n"


def _steps(proof: LoadProof) -> Iterator[str]:
    """Yield the steps; a command stands in a line of its own."""
    for step in proof.steps():
        yield step[2:] if step.startswith("$ ") else f"{'next':15} {step}"


def _verdict(proof: LoadProof, problems: Sequence[str]) -> str:
    own = proof.deployed.own
    if problems:
        known = set(problems) - set(proof.unknown())
        said = f"not as {'exported' if own else 'tuned'}" if known else "not proven"
        return f"{said}: {_count(len(problems))}"
    if own:
        return f"as exported: all {own} entries are the engine's own choice, so nothing is gained"
    return "as tuned"


def _count(problems: int) -> str:
    return "1 problem" if problems == 1 else f"{problems} problems"


def _network(network: Network) -> Iterator[str]:
    for name, where in network.names.items():
        yield f"{'network':15} NET/{name} ({where})"
    if network.devices:
        control = f", control over {', '.join(network.control)}" if network.control else ""
        yield f"{'':16}{', '.join(network.devices)}{control}"
    if network.direct or network.staged:
        yield f"{'':16}{network.direct} channels with GPUDirect RDMA, {network.staged} without"


def _details(load: FileLoad) -> Iterator[str]:
    if load.used:
        yield f"read {load.used}" + (f" (Triton {load.triton})" if load.triton else "")
    if load.entries:
        yield f"entries: {load.entries}"
    if load.reason:
        yield load.reason
    if load.outcome is not LoadOutcome.LOADED and not load.by_plugin:
        for path in load.wanted:
            yield f"not found: {path}"
    yield f"{len(load.lines)} line(s)" + (f", {', '.join(load.ranks)}" if load.ranks else "")
