"""Read the lines that NCCL writes about networks with NCCL_DEBUG=INFO.

As in these lines of NCCL 2.21:

    NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [1]mlx5_2:1/RoCE [RO]; OOB xgbe0:10.63.65.207<0>
    NCCL INFO Using network IB
    NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_USING = re.compile(r"NET/(?:IB|Socket) ?: Using (.*?)(?:; OOB ([^:\s]+):|$)")
_DEVICE = re.compile(r"\[\d+\]([^:\s]+):\d+/")
_NETWORK = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (\w+)")
_VIA = re.compile(r"via NET/(\w+)/\d+(?:\([^)]*\))?(/GDRDMA)?")
SOCKET = "Socket"


@dataclass
class Network:
    """The network between nodes, as a log describes it."""

    names: dict[str, str] = field(default_factory=dict)  # network -> FILE:LINE that says so
    devices: dict[str, None] = field(default_factory=dict)  # RDMA devices, in order
    control: dict[str, None] = field(default_factory=dict)  # interfaces of out-of-band traffic
    direct: int = 0  # channels with GPUDirect RDMA
    staged: int = 0  # channels over the network without it

    def read(self, line: str, where: str) -> None:
        """Take a line of a log; lines about other things change nothing."""
        if "NCCL" not in line:
            return
        if using := _USING.search(line):
            self.devices.update(dict.fromkeys(_DEVICE.findall(using[1])))
            if using[2]:
                self.control[using[2]] = None
        if network := _NETWORK.search(line):
            self.names.setdefault(network[1], where)
        if via := _VIA.search(line):
            self.names.setdefault(via[1], where)
            self.direct += via[2] is not None
            self.staged += via[2] is None

    @property
    def sockets(self) -> str:
        """Return the line in which NCCL takes TCP sockets; "" if it does not."""
        return self.names.get(SOCKET, "")
