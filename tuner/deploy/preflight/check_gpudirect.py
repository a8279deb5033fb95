"""Checks of what GPUDirect RDMA needs, so that NICs read GPU memory without a copy in between.

Source: NVIDIA's NCCL documentation, "Troubleshooting" (GPU-to-NIC communication, PCI access control
services), and the Linux driver's documentation of nvidia-peermem and dma-buf.
"""

from __future__ import annotations

from collections.abc import Iterator

from tuner.deploy.preflight.facts import Finding, Node
from tuner.deploy.preflight.links import NodeLinks

_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF = (5, 12)  # the first kernel release with dma-buf for peer memory
_MOST_BRIDGES = 8


def check_gpudirect(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Every finding about GPUDirect RDMA; none on a node without RDMA devices."""
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
