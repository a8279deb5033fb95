"""Whether one node alone sends or receives without GPUDirect RDMA, by NCCL's connections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind

_CONNECTION = re.compile(  # transport/net.cc; a socket never has it
    r"(?:([\w.-]+):\d+:\d+ \[\d+\] NCCL INFO .*?)?\b(\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\] "
    r"\[(send|receive)\] via NET/(?!Socket)(.+)"
)
_MOST, _NAMED = 4096, 8
_FIX = (
    "On that node, on the host and not in the container, see whether the module is there, and load "
    "it; then start the server's containers anew:",
    "$ lsmod | grep peermem; sudo modprobe nvidia-peermem",
    "If it does not load, install NVIDIA's driver again after OFED. DMA-BUF does without it: the "
    "driver's open kernel modules, Linux 5.12 or later and CUDA 11.7 or later.",
    "If it is loaded, compare both nodes: a card far from its GPU on PCIe has none either.",
    "$ nvidia-smi topo -m; tuner preflight",
)


@dataclass
class GdrReader:
    """Keeps, for each host or rank, which of its connections have GPUDirect RDMA."""

    opens: Sequence[bytes] = (b"]viaNET/",)
    marks: Sequence[bytes] = (b"]viaNET/",)
    # By host or rank: the directions of connections with it and without it, FILE:LINE.
    _ends: dict[str, dict[tuple[bool, str], str]] = field(default_factory=dict)

    def read(self, line: str, where: str) -> None:
        if (match := _CONNECTION.search(line)) and len(self._ends) < _MOST:
            host, source, target, direction, rest = match.groups()
            end = host or f"rank {source if direction == 'send' else target}"
            kept = self._ends.setdefault(end, {})
            kept.setdefault(("/GDRDMA" in rest, direction), where)

    def told(self, whole: Whole) -> Iterator[Reading]:
        """The ends that have none, if others do in the same direction or receive without it.

        Older GPUs send without it where they receive with it: that is as it should be.
        """
        having = {kind for kinds in self._ends.values() for kind in kinds if kind[0]}
        lack = {
            end: where
            for end, kinds in self._ends.items()
            if not any(has for has, _ in kinds)
            for (_, direction), where in kinds.items()
            if direction == "receive" or (True, "send") in having
        }
        if not having or not lack:
            return
        named = ", ".join([*lack][:_NAMED]) + (" and others" if len(lack) > _NAMED else "")
        others = ", ".join([end for end in self._ends if end not in lack][:_NAMED])
        yield Reading(
            "gdr_lacks",
            Kind.SLOW,
            f"no GPUDirect RDMA on {named}",
            next(iter(lack.values())),
            [
                f"NCCL's lines of connections have `/GDRDMA` for {others} and not for {named}: "
                "there each transfer takes a copy through the host's memory, and the slowest node "
                "sets the pace.",
                "The usual cause is that nvidia-peermem (before: nv_peer_mem) is not loaded on "
                "that node, and DMA-BUF is not available there either.",
            ],
            _FIX,
            {"without": [*lack]},
        )
