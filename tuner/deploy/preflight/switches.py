"""Find the GPUs and the RDMA devices that share a PCIe switch, by `nvidia-smi topo -m`."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.deploy.preflight.facts import Topology, joined

# Relations of two devices on the same PCIe switch, or on the same processor socket.
SWITCH = ("PIX", "PXB")
SOCKET = ("PIX", "PXB", "PHB", "NODE")


@dataclass
class PcieSwitch:
    """The GPUs and the RDMA devices below a PCIe switch (or a socket)."""

    gpus: list[str]
    nics: list[str]
    kind: str = "switch"

    def __str__(self) -> str:
        return f"the {self.kind} of {joined(self.gpus)}" if self.gpus else f"no GPU's {self.kind}"


def find_switches(
    topology: Topology, devices: tuple[str, ...], kinds: tuple[str, ...] = SWITCH
) -> list[PcieSwitch]:
    """Return the switches with a GPU; some may have no RDMA device. Empty if no NIC is near a GPU.

    NVLink hides the PCIe relation of two GPUs, so GPUs near the same NIC count as below the same
    switch.
    """
    nics = [n for n in topology.nics if n in devices]
    if not any(topology.near(g, n, kinds) for g in topology.gpus for n in nics):
        return []
    switches: list[PcieSwitch] = []
    for gpu in topology.read_gpus:
        near = [n for n in nics if topology.near(gpu, n, kinds)]
        same = [
            s
            for s in switches
            if any(topology.near(gpu, g, kinds) for g in s.gpus) or any(n in s.nics for n in near)
        ]
        merged = PcieSwitch([gpu], near, "switch" if kinds == SWITCH else "socket")
        for switch in same:
            merged.gpus += switch.gpus
            merged.nics += [n for n in switch.nics if n not in merged.nics]
            switches.remove(switch)
        switches.append(merged)
    return switches
