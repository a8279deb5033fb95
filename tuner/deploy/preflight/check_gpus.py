"""Check a node's GPUs: their number, links and memory, and the NICs that serve them.

Source for the needs of GPUDirect RDMA: NVIDIA's NCCL documentation, "Troubleshooting" (GPU-to-NIC
communication, PCI access control services), and the Linux driver's documentation of nvidia-peermem
and dma-buf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Tuple  # noqa: UP035 - Python 3.8

from tuner.deploy.preflight.collectives import FAR
from tuner.deploy.preflight.devices import card_of
from tuner.deploy.preflight.facts import (
    Expected,
    ExpectedNode,
    Finding,
    Node,
    NodeGpu,
    Topology,
    joined,
    natural,
)
from tuner.deploy.preflight.links import NodeLinks
from tuner.deploy.preflight.switches import SOCKET, PcieSwitch, find_switches

Card = Tuple[str, ...]  # noqa: UP006 - Python 3.8; the RDMA devices of a card
THROUGH = {  # the words of nvidia-smi's legend
    "PHB": "through the PCIe host bridge (PHB)",
    "NODE": "through host bridges of its NUMA node (NODE)",
    "SYS": "through the link between NUMA nodes (SYS)",
    "SOC": "through the link between processors (SOC)",
}


def misplaced(node: Node, links: NodeLinks) -> list[tuple[Card, PcieSwitch, PcieSwitch]]:
    """Return (card, the switch that it is under, the switch that lacks it) for each misplaced card.

    A switch's share of the devices is in proportion to its GPUs. A card is misplaced if a switch
    has less than its share, and the card is under a switch with more, or under none. The management
    link's card stays in place. With fewer devices than switches, sockets are compared instead.
    """
    devices = movable(node, links)
    switches = find_switches(node.topology, devices)
    present = [d for d in devices if d in node.topology.nics]
    if len(present) < len(switches):
        switches = find_switches(node.topology, devices, SOCKET)
    if len({len(s.nics) / len(s.gpus) for s in switches}) < 2:
        return []  # evenly spread: other devices serve another purpose
    gpus = sum(len(s.gpus) for s in switches)
    placed = {n for s in switches for n in s.nics}
    nowhere = [d for d in present if d not in placed]
    total = len(placed) + len(nowhere)
    found = []
    for lacking in switches:
        while len(lacking.nics) < total * len(lacking.gpus) // gpus:
            taken = _surplus(node, switches, nowhere, total, gpus)
            if taken is None:
                break
            card, origin = taken
            before = PcieSwitch(list(origin.gpus), list(origin.nics), lacking.kind)
            found.append((card, before, lacking))
            for device in card:
                origin.nics.remove(device)
                lacking.nics.append(device)
    return found


def movable(node: Node, links: NodeLinks) -> Card:
    """Return the devices for collectives that are not on the management link's card."""
    fixed = card_of(node, links.device) if links.device else ()
    return tuple(d for d in _named(node, links) if d not in fixed)


def _surplus(
    node: Node, switches: list[PcieSwitch], nowhere: list[str], total: int, gpus: int
) -> tuple[Card, PcieSwitch] | None:
    """Return a card to move: a card under no GPU's switch, or the last of the fullest switch."""
    if nowhere:
        origin, device = PcieSwitch([], nowhere), nowhere[0]
    else:
        origin = max(switches, key=lambda s: len(s.nics) / len(s.gpus))
        if len(origin.nics) <= -(-total * len(origin.gpus) // gpus):  # its share, rounded up
            return None
        device = max(origin.nics, key=natural)
    return tuple(d for d in card_of(node, device) if d in origin.nics), origin


def check_topology(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Yield every finding about misplaced devices, and about switches without devices."""
    wrong = misplaced(node, links)
    for card, origin, lacking in wrong:
        yield misplaced_finding(node, card, origin, lacking)
    if wrong:
        return
    yield from _unused(node, links)
    switches = find_switches(node.topology, _named(node, links))
    if not switches:
        yield from _nowhere_near(node)
    bare = [s for s in switches if not s.nics]
    if bare:
        yield node.warning(
            "too-few-hcas",
            f"{sum(len(s.nics) for s in switches)} RDMA devices for {len(switches)} PCIe switches "
            "with GPUs: none under "
            + "; ".join(str(s) for s in bare)
            + "".join(f"; {words}" for words in distances(node.topology, bare)),
            "add an RDMA card below each such switch, or expect these GPUs' traffic to cross the "
            "CPU and share another GPU's card",
            tuple(node.topology.lines.get(g, g) for s in bare for g in s.gpus),
        )
    yield from _uneven(node, switches)


def _named(node: Node, links: NodeLinks) -> Card:
    """Return the devices for collectives, and far devices; the topology's if nothing else names
    any.
    """
    devices = links.compute or node.topology.nics
    return tuple(d for d in devices if links.left_out.get(d, FAR) == FAR)


def distances(topology: Topology, switches: list[PcieSwitch]) -> Iterator[str]:
    """Yield how the GPUs of switches without devices reach the nearest device."""
    found: dict[str, list[str]] = {}
    for gpu in (gpu for switch in switches for gpu in switch.gpus):
        found.setdefault(topology.nearest(gpu)[0], []).append(gpu)
    for kind, gpus in found.items():
        if kind in THROUGH:
            yield f"{joined(gpus)} reach{'' if len(gpus) > 1 else 'es'} one {THROUGH[kind]}"


def _nowhere_near(node: Node) -> Iterator[Finding]:
    """Yield a finding for a node on which no GPU shares a PCIe switch with a device."""
    topology = node.topology
    if not topology.nics or not topology.read_gpus:
        return
    nearest = {gpu: topology.nearest(gpu)[0] for gpu in topology.read_gpus}
    far = [PcieSwitch([gpu], []) for gpu, kind in nearest.items() if kind not in SOCKET]
    every = [PcieSwitch([gpu], []) for gpu in nearest]
    words = "; ".join(distances(topology, every))
    finding = node.warning if far and len(far) < len(every) else node.info
    yield finding(
        "no-near-hca",
        f"no RDMA device shares a PCIe switch with a GPU: {words}",
        "nothing to do on a machine without PCIe switches; otherwise put the RDMA cards into slots "
        "below the GPUs' switches",
        tuple(topology.lines[gpu] for gpu in topology.read_gpus if gpu in topology.lines),
    )


def _unused(node: Node, links: NodeLinks) -> Iterator[Finding]:
    far = [device for device, reason in links.left_out.items() if reason == FAR]
    if far:
        yield node.info(
            "hca-far",
            f"left out of NCCL_IB_HCA: {joined(far)}, under no GPU's PCIe switch or on the card of "
            "the management link",
            "nothing to do, unless it was meant for collectives",
            tuple(node.topology.lines[d] for d in far if d in node.topology.lines),
        )


def _uneven(node: Node, switches: list[PcieSwitch]) -> Iterator[Finding]:
    ratios = {len(s.nics) / len(s.gpus) for s in switches if s.nics}
    if len(ratios) > 1:
        fewest = min((s for s in switches if s.nics), key=lambda s: len(s.nics) / len(s.gpus))
        yield node.warning(
            "too-few-hcas",
            f"{fewest} has {len(fewest.nics)} RDMA devices, others have more for each GPU",
            "the slowest switch sets the pace: spread the cards evenly",
            tuple(node.topology.lines.get(g, g) for g in fewest.gpus),
        )


def misplaced_finding(node: Node, card: Card, origin: PcieSwitch, lacking: PcieSwitch) -> Finding:
    """Return the finding for a misplaced card."""
    numa = node.topology.numa.get(lacking.gpus[0], "")
    target = f"{lacking}{f' (NUMA node {numa})' if numa else ''}"
    others = [n for n in origin.nics if n not in card] if origin.gpus else []
    either = f" (or one of {joined(others)}, which share it)" if others else ""
    ports = f"{joined(card)} are" if len(card) > 1 else f"{card[0]} is"
    moved = f"the card of {joined(card)}" if len(card) > 1 else card[0]
    rows = [*card, *sorted(lacking.gpus, key=natural)]
    return node.error(
        "nic-wrong-switch",
        f"{ports} under {origin}, while {lacking} has fewer RDMA devices than its share",
        f"move {moved}{either} to a slot below {target}; until then leave {joined(card)} out of "
        "NCCL_IB_HCA",
        tuple(node.topology.lines[r] for r in rows if r in node.topology.lines),
    )


_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF = (5, 12)  # the first kernel release with dma-buf for peer memory
_MOST_BRIDGES = 8


def check_gpudirect(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Yield every finding about GPUDirect RDMA; none on a node without RDMA devices."""
    if not links.compute:
        return
    yield from _peer_memory(node)
    yield from _access_control(node)
    yield from _iommu(node)


def _peer_memory(node: Node) -> Iterator[Finding]:
    kernel = node.kernel
    if "nvidia" not in kernel.modules:
        return  # the modules were not captured, or the driver is not loaded
    if any(module in kernel.modules for module in _PEER_MODULES):
        return
    if kernel.open_modules and kernel.release and kernel.release >= _DMA_BUF:
        return  # NCCL uses dma-buf
    yield node.warning(
        "gpudirect-module",
        "nvidia_peermem is not loaded: each transfer between nodes is copied through host memory",
        "modprobe nvidia-peermem, and add nvidia-peermem to /etc/modules-load.d; or use NVIDIA's "
        "open kernel modules on Linux 5.12 or later, which need no such module",
    )


def _access_control(node: Node) -> Iterator[Finding]:
    bridges = node.kernel.redirecting_bridges
    if node.kernel.hidden_bridges:
        yield node.info(
            "acs-unknown",
            "lspci shows no ACS, so it was not checked",
            "capture as root: other users do not see it",
        )
    if not bridges:
        return
    more = f" and {len(bridges) - _MOST_BRIDGES} more" if len(bridges) > _MOST_BRIDGES else ""
    yield node.warning(
        "acs-enabled",
        f"ACS is on at {len(bridges)} PCI bridges: traffic between a GPU and its card goes up to "
        "the processor and back",
        "on a machine without virtual machines, disable ACS in the BIOS, or at each boot: "
        "setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
        (f"ACSCtl: SrcValid+ at {' '.join(bridges[:_MOST_BRIDGES])}{more}",),
    )


def _iommu(node: Node) -> Iterator[Finding]:
    kernel = node.kernel
    passes = {"iommu=pt", "iommu.passthrough=1"}.intersection(kernel.cmdline)
    if not kernel.iommu or passes:
        return
    words = [word for word in kernel.cmdline if "iommu" in word]
    yield node.warning(
        "iommu-enabled",
        "the IOMMU translates addresses: traffic between a GPU and its card goes up to the "
        "processor and back",
        "on a machine without virtual machines, switch the IOMMU (VT-d, AMD-Vi) off in the BIOS, "
        "or boot with iommu=pt",
        (f"/sys/class/iommu: {' '.join(kernel.iommu)}; boot words: {' '.join(words) or 'none'}",),
    )


# The share of memory for weights; the engine's context, graphs and KV cache need the rest.
SHARD_PART = 0.9
_BUSY = ("P0", "P1", "P2")  # in other states a GPU lowers the generation of its link
_GIB = 2**30
IN_USE = 2 * _GIB  # a driver and its daemons hold less


def check_gpus(
    node: Node, expected: Expected | None, expected_node: ExpectedNode | None
) -> Iterator[Finding]:
    """Yield every finding about the node's GPUs."""
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
    yield from _names(node, expected)
    yield from _in_use(node)
    if expected:
        yield from _memory(node, expected)


def _names(node: Node, expected: Expected | None) -> Iterator[Finding]:
    """Check the GPUs' names, by which config files are chosen: a file cannot serve two names."""
    names = sorted({gpu.name for gpu in node.gpus if gpu.name})
    evidence = tuple(f"{gpu.bus_id}: {gpu.name}" for gpu in node.gpus)
    if len(names) > 1:
        yield node.error(
            "gpus-differ",
            f"the node has GPUs of different names: {' and '.join(names)}",
            "serve on GPUs of the same name; servers choose config files by it",
            evidence,
        )
    wanted = expected.gpu if expected else ""
    others = [name for name in names if wanted and not same_gpu(name, wanted, expected)]
    if others:
        yield node.error(
            "gpus-differ",
            f"the bundle is for {wanted}, and the node has {' and '.join(others)}: its servers "
            "load none of the tuned files",
            "bundle again with --device for this card, or launch on other nodes",
            evidence,
        )


def same_gpu(name: str, wanted: str, expected: Expected | None) -> bool:
    """Say whether a GPU's name, as nvidia-smi prints it, is the name in names of config files."""
    folded = name.replace(" ", "_")
    if expected and expected.engine == "vllm" and "H200" in folded:
        return wanted == "NVIDIA_H200"  # vLLM's name for the whole family
    return folded == wanted


def _in_use(node: Node) -> Iterator[Finding]:
    busy = [gpu for gpu in node.gpus if (gpu.used_bytes or 0) > IN_USE]
    if busy:
        yield node.warning(
            "memory-in-use",
            f"memory of {len(busy)} GPUs is in use: a server counts on all of it",
            "stop the processes there (nvidia-smi shows them)",
            tuple(
                f"{gpu.bus_id}: {(gpu.used_bytes or 0) / _GIB:.1f} of "
                f"{(gpu.memory_bytes or 0) / _GIB:.1f} GiB"
                for gpu in busy
            ),
        )


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
