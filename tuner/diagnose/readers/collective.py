"""Whether NCCL's communicator is made, and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading
from tuner.diagnose.table import Kind

USUAL = (
    "The usual reasons: ACS or the IOMMU blocks direct transfers between GPUs (P2P), or /dev/shm "
    "is too small where NCCL sends through shared memory (SHM)."
)
_BETWEEN = (
    "The group spans nodes, so look at the network between them first: the address and the "
    "interface that each rank takes, and its RDMA devices."
)
P2P_STEP = (
    "To see whether it is P2P, start once with NCCL_P2P_DISABLE=1. If that works, switch ACS and "
    "the IOMMU off in the BIOS (or pass iommu=pt to the kernel)."
)
_SHM_STEP = "give the container more of it: docker's --ipc=host or --shm-size=10g."
_ENGINES_OWN = (
    "Add --disable-custom-all-reduce to that start: the engine's own all-reduce uses P2P."
)
_MADE = "Init COMPLETE"
_PROMPTS = re.compile(r"Processed prompts:\s*\d+%.*?(\d+)/(\d+)")
_NODES = re.compile(r"\bnNodes (\d{1,5})\b")
_WAY = re.compile(r"\bvia (P2P|SHM|NET)/")
_P2P_OFF = re.compile(r"\bNCCL_P2P_DISABLE(?: set by environment to |=)[\"']?1")


@dataclass
class Communicator:
    """What lines of NCCL and an engine show of it, in their order."""

    marks: Sequence[bytes] = (
        *(b"InitCOMPLETE", b"Processedprompts:", b"viaP2P/", b"viaSHM/", b"viaNET/"),
        *(b"NCCL_P2P_DISABLE", b"spansacrossnodes", b"InitSTART", b"nNodes"),
    )
    _started: str = ""  # FILE:LINE
    _nodes: int = 0
    made: str = ""  # FILE:LINE
    _ways: set[str] = field(default_factory=set)  # by which it sends
    _p2p_off: bool = False
    _prompts: tuple[str, str] = ("", "")  # how many there are, FILE:LINE
    _moves: bool = False  # a prompt was done

    def read(self, line: str, where: str) -> None:
        if _MADE in line:
            self.made = where
        elif "Init START" in line:
            self._started = where
        elif match := _NODES.search(line):
            self._nodes = int(match[1])
        elif match := _PROMPTS.search(line):
            self._moves |= match[1] != "0"
            self._prompts = match[2], where
        elif match := _WAY.search(line):
            self._ways.add(match[1])
        elif "spans across nodes" in line:
            self._ways.add("NET")
        elif _P2P_OFF.search(line):
            self._p2p_off = True

    @property
    def usual(self) -> str:
        """The usual reasons for a first collective that does not return."""
        return _BETWEEN if self._ways == {"NET"} else USUAL

    def told(self, hangs: bool) -> Iterator[Reading]:
        """That prompts wait, if none is done in the text and the communicator is made."""
        many, where = self._prompts
        if not self.made or not many or self._moves:
            return
        yield Reading(
            "collective_waits",
            Kind.WAITS if hangs else Kind.NOTE,
            f"NCCL's communicator is made, and 0 of {many} prompts are done where the text ends",
            where,
            [
                "If it stays there, the first collective for these prompts seems not to return.",
                self.usual,
            ],
            self.fix(),
            {"made": self.made, "prompts": int(many)},
            "vllm",
        )

    def begun(self) -> Iterator[Reading]:
        """That NCCL began to make the communicator between nodes and did not end."""
        if self.made or not self._started or self._nodes < 2:
            return
        yield Reading(
            "communicator_waits",
            Kind.WAITS,
            "NCCL began to make a communicator between nodes, and the text shows no end of it",
            self._started,
            [
                "`Init START` stands there, and `Init COMPLETE` does not: a rank has not come, or "
                "ranks do not reach each other by the network or the links that NCCL has chosen. "
                "It is no question of speed, and no kernel is at fault.",
            ],
            (
                "Look at the same time of every rank's log, on all nodes: a rank without `Init "
                "START`, or with a warning (NCCL WARN), is the cause. Give all logs at once.",
                "Start once with NCCL_IB_DISABLE=1 on all nodes: if it goes on then, RDMA is the "
                "cause (the port, the GID, a device of another network). If not, the interface is: "
                "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, and open the firewall between the "
                "nodes for all ports.",
                "nccl-tests between the same GPUs shows it without a server; the preflight looks "
                "at ports and addresses of each node:",
                "$ tuner preflight",
            ),
            {"started": self._started},
        )

    def fix(self) -> Sequence[str]:
        """What shows the reason, without what the text shows to be tried or not to be the way."""
        p2p = not self._p2p_off and (not self._ways or "P2P" in self._ways)
        steps = [P2P_STEP, f"sglang: {_ENGINES_OWN}", f"vLLM: {_ENGINES_OWN}"] if p2p else []
        if "SHM" in self._ways or self._p2p_off:
            steps.append(f"See whether /dev/shm is too small (`df -h /dev/shm`), and {_SHM_STEP}")
        elif not self._ways:
            steps.append(f"If NCCL sends through /dev/shm (`via SHM` in its lines), {_SHM_STEP}")
        if "NET" in self._ways:
            steps += ["NCCL sends over the network. Look at each node:", "$ tuner preflight"]
        ranks = (
            "Take the stack of each rank. If one is in no collective, the others wait for it, and "
            "the links are not the reason:"
        )
        return (*steps, ranks, "$ py-spy dump --pid PID")
