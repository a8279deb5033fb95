"""Read `nvidia-smi topo -m`, `nvidia-smi -q`, and the kernel's facts about GPUDirect RDMA.

These are modules, the command line, IOMMU and lspci. Unknown lines are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.deploy.preflight.facts import KernelFacts, NodeGpu, PcieLink, Topology

_RELATION = re.compile(r"^(X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined, even in a file
_GPU_HEADER = re.compile(r"^GPU ([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9])\s*$", re.IGNORECASE)
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_topology(text: str) -> Topology:
    """Return the matrix; NICs have their RDMA names if the legend or the header gives them."""
    lines = _ANSI.sub("", text).splitlines()
    start = next((i for i, line in enumerate(lines) if _names_columns(line.split())), None)
    if start is None:
        return Topology()
    header = _columns(lines[start])
    names = dict(re.findall(r"^\s*(NIC[0-9]+):\s*(\S+)\s*$", "\n".join(lines), re.MULTILINE))
    columns = [names.get(column, column) for column in header]
    topology = Topology(
        tuple(c for c in columns if re.fullmatch(r"GPU[0-9]+", c)),
        tuple(c for c in columns if not re.fullmatch(r"GPU[0-9]+", c)),
    )
    for line in lines[start + 1 :]:
        _add_row(topology, columns, names, line)
    return topology


def _names_columns(words: list[str]) -> bool:
    """Say whether a line names the columns: the row of GPU0 begins with the same word."""
    return words[:1] == ["GPU0"] and not any(_RELATION.match(word) for word in words)


def _columns(header: str) -> list[str]:
    """Return the devices in the header, which come before `CPU Affinity`."""
    return header.partition("CPU")[0].split()  # a blank before it may be lost


def _add_row(topology: Topology, columns: list[str], names: dict[str, str], line: str) -> None:
    cells = line.split()
    name = names.get(cells[0], cells[0]) if cells else ""
    values = cells[1 : len(columns) + 1]
    if name not in columns or len(values) < len(columns):
        return
    if not all(_RELATION.match(value) for value in values):
        return
    topology.lines[name] = line.strip()
    for i, column in enumerate(columns):
        topology.relations[(name, column)] = values[i]
    rest = cells[len(columns) + 1 :]  # CPU affinity, NUMA affinity, GPU NUMA ID
    if name in topology.gpus and len(rest) > 1:
        topology.numa[name] = rest[1]


def parse_nvidia_smi(text: str) -> tuple[NodeGpu, ...]:
    """Return the GPUs in the output of `nvidia-smi -q`."""
    return tuple(_gpu(bus_id, values) for bus_id, values in _blocks(text))


def _blocks(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (bus id, "section/section/key" -> value) for each GPU; indentation shows the
    sections.
    """
    bus_id = ""
    values: dict[str, str] = {}
    sections: list[tuple[int, str]] = []
    for line in text.splitlines():
        header = _GPU_HEADER.match(line)
        if header:
            if bus_id:
                yield bus_id, values
            bus_id, values, sections = header.group(1), {}, []
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.partition(" : ")
        while sections and sections[-1][0] >= indent:
            sections.pop()
        if colon:
            path = "/".join([*(name for _, name in sections), key.strip()])
            values.setdefault(path, value.strip())
        elif key.strip():
            sections.append((indent, key.strip()))
    if bus_id:
        yield bus_id, values


def _gpu(bus_id: str, values: dict[str, str]) -> NodeGpu:
    link = "PCI/GPU Link Info/"
    generation = _whole(values.get(f"{link}PCIe Generation/Current"))
    max_generation = _whole(values.get(f"{link}PCIe Generation/Max"))
    width = _whole(values.get(f"{link}Link Width/Current"))
    max_width = _whole(values.get(f"{link}Link Width/Max"))
    pcie = None
    if generation and max_generation and width and max_width:
        pcie = PcieLink(generation, max_generation, width, max_width)
    return NodeGpu(
        bus_id,
        values.get("Product Name", ""),
        _bytes(values.get("FB Memory Usage/Total")),
        values.get("Performance State", ""),
        pcie,
        _whole(values.get(f"{link}PCIe Generation/Device Max")),
        _bytes(values.get("FB Memory Usage/Used")),
    )


def _whole(text: str | None) -> int | None:
    match = re.fullmatch(r"([0-9]{1,3})x?", text or "")
    return int(match.group(1)) if match else None


def _bytes(text: str | None) -> int | None:
    match = re.fullmatch(r"([0-9]{1,12}) ([KMG]iB)", text or "")
    return int(match.group(1)) * _UNITS[match.group(2)] if match else None


_DEVICE = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (.*)", re.IGNORECASE)
_VERSION = re.compile(r"^([0-9]{1,3})\.([0-9]{1,3})")


def parse_kernel(
    modules: str, cmdline: str, iommu: str, lspci: str, driver: str, release: str
) -> KernelFacts:
    """Return the facts in /proc/modules, /proc/cmdline, the names in /sys/class/iommu, `lspci
    -vvv`, /proc/driver/nvidia/version and the kernel's release. Empty texts were not captured.
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
    """Return the PCI bridges with ACS source validation, which send traffic between their devices
    up to the root.
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
