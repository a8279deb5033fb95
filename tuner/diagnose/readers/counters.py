"""What counters of RDMA cards show: lost packets, congestion, and priorities without PFC."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind

_LOST = {  # of hw_counters and of `ethtool -S`, and what each one counts
    "local_ack_timeout_err": "no acknowledgement came in time",
    "packet_seq_err": "the receiver missed a packet",
    "implied_nak_seq_err": "a response was missing",
    "out_of_sequence": "packets came with a gap before them",
    "rnr_nak_retry_err": "the receiver was not ready",
    "rx_discards_phy": "the card had no room for what came",
    "rx_out_of_buffer": "the host was too slow to take what came; TCP too",
    # Of an InfiniBand port, in sysfs and in perfquery's words.
    **dict.fromkeys(("symbol_error", "SymbolErrorCounter"), "bits came wrong: cable or module"),
    **dict.fromkeys(("link_downed", "LinkDownedCounter"), "times that the link went down"),
    **dict.fromkeys(("port_rcv_errors", "PortRcvErrors"), "packets came broken"),
    **dict.fromkeys(("port_xmit_discards", "PortXmitDiscards"), "packets found no way out in time"),
}
_CONGESTED = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_NAMES = (*_LOST, *_CONGESTED)
_PAUSE = r"(?:prio\d|global)_pause|pause_ctrl_phy"
_DEVICE = re.compile(r"infiniband/(\w+)/ports|\blink (\w+)/\d")
_VALUE = re.compile(
    rf"(?<!\w)({'|'.join(_NAMES)}|[rt]x_(?:prio\d_bytes|{_PAUSE}))\b[:=.\s]+(\d{{1,20}})\b"
)
_PRIO_0 = ("rx_prio0_bytes", "tx_prio0_bytes")
_MOST, _NAMED = 4096, 8
_FIX = (
    "Counters add up since the driver was loaded, so see which of them grow during a run, on both "
    "ends:",
    "$ grep '' /sys/class/infiniband/*/ports/*/hw_counters/*; ethtool -S INTERFACE | grep -E "
    "'prio|pause|discard|out_of_buffer'",
    "RoCE: set up PFC (one lossless priority) and ECN, alike on all cards and switch ports, and "
    "let NCCL use that class (NCCL_IB_TC: the DSCP times 4). See what is set:",
    "$ mlnx_qos -i INTERFACE; cat /sys/class/infiniband/*/tc/*/traffic_class",
)


@dataclass
class CounterReader:
    """Keeps the last value of each counter of each device."""

    opens: Sequence[bytes] = tuple(
        name.encode() for name in (*_NAMES, "x_prio", "x_global_p", "x_pause")
    )
    marks: Sequence[bytes] = opens
    _values: dict[tuple[str, str], int] = field(default_factory=dict)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        device = "".join(filter(None, match.groups())) if (match := _DEVICE.search(line)) else ""
        for name, value in _VALUE.findall(line):
            if len(self._values) < _MOST:
                self._values[device, name] = int(value)
                self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What was lost, or that nothing was; congestion; and traffic in priority 0 alone."""
        counted = {key: value for key, value in self._values.items() if value}
        lost = [key for key in counted if key[1] in _LOST]
        read = [name for _, name in self._values if name in _LOST]
        cause = [
            f"{name} is {counted[device, name]}{f' on {device}' if device else ''}: {_LOST[name]}."
            for device, name in lost[:_NAMED]
        ]
        if lost:
            cause.append(
                "RDMA sends again what is lost or late, and waits before it does: a few among "
                "billions are harmless, many make transfers slower than TCP. A peer that died "
                "counts as well, and adaptive routing makes out_of_sequence grow without a loss."
            )
        elif read:
            cause.append(f"Nothing was lost, by {', '.join(dict.fromkeys(read))}.")
        more = [*self._congestion(), *self._priorities()]
        if cause or more:
            yield Reading(
                "rdma_counters",
                Kind.SLOW if lost else Kind.NOTE,
                "packets are lost or late" if lost else "what an RDMA card has counted",
                self._where,
                [*cause, *more],
                _FIX if lost or more else _FIX[:2],
                {" ".join(key).strip(): value for key, value in counted.items()},
            )

    def _congestion(self) -> Iterator[str]:
        named = dict.fromkeys(n for (_, n), v in self._values.items() if v and n in _CONGESTED)
        if named:
            yield (
                f"Congestion control is at work ({', '.join(named)}): senders were told to slow "
                "down, because links were too full."
            )

    def _priorities(self) -> Iterator[str]:
        """Say so if all traffic is in priority 0 and no pause frames are counted."""
        seen = {name for _, name in self._values if name.endswith("_bytes")}
        used = {n for (_, n), value in self._values.items() if value and n not in _NAMES}
        if len({name[3:] for name in seen}) > 1 and used and used <= set(_PRIO_0):
            yield (
                "All traffic is in priority 0 and no pause frames are counted: most likely "
                "no lossless class (PFC) is set up for RoCE, so full buffers of a switch drop its "
                "packets."
            )
