"""Read what the kernel says of GPUDirect RDMA: modules, the command line, IOMMU and lspci.

Unknown lines are ignored.
"""

from __future__ import annotations

import re

from tuner.deploy.preflight.facts import KernelFacts

_DEVICE = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)", re.IGNORECASE)
_VERSION = re.compile(r"^([0-9]{1,3})\.([0-9]{1,3})")


def parse_kernel(
    modules: str, cmdline: str, iommu: str, lspci: str, driver: str, release: str
) -> KernelFacts:
    """The facts in /proc/modules, /proc/cmdline, the names in /sys/class/iommu, `lspci -vvv`,
    /proc/driver/nvidia/version and the kernel's release. Empty texts were not captured.
    """
    found = _VERSION.match(release)
    return KernelFacts(
        modules=tuple(line.split()[0] for line in modules.splitlines() if line.split()),
        cmdline=tuple(cmdline.split()),
        iommu=tuple(iommu.split()),
        redirecting_bridges=redirecting_bridges(lspci),
        hidden_bridges=bool(lspci.strip()) and "ACSCtl:" not in lspci,
        open_modules="Open Kernel Module" in driver,
        release=(int(found.group(1)), int(found.group(2))) if found else None,
    )


def redirecting_bridges(lspci: str) -> tuple[str, ...]:
    """The PCI bridges with ACS source validation, which send traffic between their devices up to
    the root.
    """
    found: list[str] = []
    bridge = ""
    for line in lspci.splitlines():
        device = _DEVICE.match(line)
        if device:
            bridge = device.group(1) if device.group(2).startswith("PCI bridge") else ""
        elif bridge and "ACSCtl:" in line and "SrcValid+" in line:
            found.append(bridge)
    return tuple(found)
