"""Checks of a node's GPUs: their number, their PCIe links, and whether the weights fit."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.deploy.preflight.expected import Expected, ExpectedNode
from tuner.deploy.preflight.facts import Finding, Node, NodeGpu

# The share of memory for weights; the engine's context, graphs and KV cache need the rest.
SHARD_PART = 0.9
_BUSY = ("P0", "P1", "P2")  # in other states a GPU lowers the generation of its link
_GIB = 2**30


def check_gpus(
    node: Node, expected: Expected | None, expected_node: ExpectedNode | None
) -> Iterator[Finding]:
    """Every finding about the node's GPUs."""
    for gpu in node.gpus:
        yield from _link(node, gpu)
    if expected_node and node.gpus and len(node.gpus) < expected_node.gpus:
        yield node.error(
            "gpus-missing",
            f"{len(node.gpus)} GPUs answer, the cluster file asks for {expected_node.gpus}",
            "look for a GPU that fell off the bus (dmesg | grep -i xid), or set gpus in the "
            "cluster file",
            tuple(gpu.bus_id for gpu in node.gpus),
        )
    if expected:
        yield from _memory(node, expected)


def _link(node: Node, gpu: NodeGpu) -> Iterator[Finding]:
    link = gpu.pcie
    if link is None:
        return
    runs = f"GPU {gpu.bus_id} runs at PCIe gen {link.generation} x{link.width}"
    could = f"gen {link.max_generation} x{link.max_width}"
    evidence = (f"{runs}, at most {could}, performance state {gpu.performance_state or 'unknown'}",)
    if link.width < link.max_width:
        yield node.error(
            "pcie-degraded",
            f"{runs} of {could}: lanes are lost",
            "reseat the card and its riser or cable; a bifurcated slot gives fewer lanes",
            evidence,
        )
    elif link.generation < link.max_generation:
        if gpu.performance_state in _BUSY:
            fix = "check the slot's link speed in the BIOS and the riser"
            yield node.error("pcie-degraded", f"{runs} of {could}", fix, evidence)
        else:
            fix = "look again under load: an idle GPU saves power this way"
            yield node.info("pcie-degraded", f"{runs} of {could} while idle", fix, evidence)
    if gpu.device_max_generation and link.max_generation < gpu.device_max_generation:
        yield node.warning(
            "pcie-degraded",
            f"GPU {gpu.bus_id} could do PCIe gen {gpu.device_max_generation}, its slot only "
            f"gen {link.max_generation}",
            "move it to a slot of its own generation, or raise the slot's link speed in the BIOS",
            evidence,
        )


def _memory(node: Node, expected: Expected) -> Iterator[Finding]:
    sizes = [gpu.memory_bytes for gpu in node.gpus if gpu.memory_bytes]
    if not expected.weight_bytes or not sizes or expected.ranks < 1:
        return
    shard, smallest = expected.weight_bytes / expected.ranks, min(sizes)
    if shard > SHARD_PART * smallest:
        needed = int(expected.weight_bytes / (SHARD_PART * smallest)) + 1
        yield node.error(
            "memory-too-small",
            f"each of {expected.ranks} ranks holds {shard / _GIB:.1f} GiB of weights, over "
            f"{SHARD_PART:.0%} of the GPU's {smallest / _GIB:.1f} GiB",
            f"spread the model over at least {needed} GPUs, or serve smaller weights",
            (f"{node.gpus[0].name}: {smallest / _GIB:.1f} GiB",),
        )
