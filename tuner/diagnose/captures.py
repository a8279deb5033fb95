"""Outputs of a node's own tools in a text: what they show alone, by the preflight's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.deploy.preflight.check_gpus import THROUGH, check_topology
from tuner.deploy.preflight.check_rdma import check_rdma
from tuner.deploy.preflight.devices import gid_indexes, up_devices
from tuner.deploy.preflight.facts import Finding, Gid, Node, Topology, joined
from tuner.deploy.preflight.gpus import parse_topology
from tuner.deploy.preflight.links import find_links, hca_list
from tuner.deploy.preflight.network import (
    parse_devinfo_gids,
    parse_ibdev2netdev,
    parse_ibstat,
    parse_ibv_devinfo,
    parse_rdma_link,
    parse_show_gids,
)
from tuner.deploy.preflight.switches import SWITCH
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.shell import export_line

_NODE = "the node"
# A row of nccl-tests: size, count, type, then an operation, a root or neither, then time, algbw,
# busbw and, in newer ones, a count of wrong results. A launcher may put its own prefixes between.
_ROW = re.compile(
    r"(\d+)[ \t]+\d+[ \t]+(?:\w*(?:float|half|int|double)\w*|fp?8\w+)(?:[ \t]+[a-z]\w*)?"
    r"(?:[ \t]+-?\d+(?:[ \t]*\[\d+\])?)?[ \t]+[\d.]+[ \t]+[\d.]+[ \t]+([\d.]+)(?=\s|$)"
    r"(?:[ \t]+(\d+)(?=[\s\[]|$))?"
)
_RATES = re.compile(r"^\s*(\d{1,12})\s+\d{1,9}\s+[\d.]{1,12}\s+(\d{1,9}\.\d{1,6})\s", re.MULTILINE)
_TABLE_ENDS = re.compile(r"Avg bus bandwidth.*|.*\balgbw\b.*")
_RANKS = re.compile(r"\bRank +(\d+) .*?\bdevice +\d+")
_ALONE = (
    "One rank on one GPU ran: nothing is sent, so busbw is 0 by its definition, which has the "
    "factor 2 (n - 1) / n for n ranks. That is no fault."
)
_MORE_RANKS = "Run it with at least two GPUs: -g 2 in one process, or mpirun -n 2 and -g 1."
_FAILED = re.compile(r"Out of bounds values\s*:\s*[1-9]\d*")
_GID_HEAD = re.compile(r"(?m)^\W*DEV\s+PORT\s+INDEX\b.*$")
_APART = (
    "The tables of this text have different indexes, in their order {}: they are of several hosts "
    "or pods, so no single NCCL_IB_GID_INDEX fits. The index comes from the order in which "
    "addresses were given, and moves with each new interface."
)
_UNSET_APART = (
    "Leave NCCL_IB_GID_INDEX unset with NCCL 2.21 and later, which choose the row themselves. "
    "Older ones need it on each host or pod by itself, in the environment of the very process "
    "(mpirun -x, the container's env) or in /etc/nccl.conf there; /etc/environment does not reach "
    "a process that no login starts."
)
_UNSET = (
    "NCCL 2.21 and later choose the row themselves: leave NCCL_IB_GID_INDEX unset, for the index "
    "moves when interfaces change. Older ones need it, if it is the same on all ports and nodes:"
)
# What `nvidia-smi topo -m` calls a way without NVLink, the nearest first.
_WAYS = {
    "PIX": "over one PCIe switch",
    "PXB": "over several PCIe switches",
    "PHB": "through the PCIe host bridge",
    "NODE": "through host bridges of a NUMA node",
    "SYS": "through the link between NUMA nodes",
    "SOC": "through the link between NUMA nodes",
}
_FAR = ("SYS", "SOC")
_WITHOUT_NVLINK = (
    "See which GPUs may read each other's memory. Others send through the host's memory:",
    "$ nvidia-smi topo -p2p r",
    "Compare with pipeline parallelism, which sends much less: between groups of GPUs that are far "
    "from each other, or between all.",
)
_WITHOUT_PEERS = re.compile(r"(?i)RTX[ _]?(?:40|50)[5-9]0")
_NO_PEERS = (
    "NVIDIA's own driver lets no GeForce RTX 40 or 50 read another card's memory, however near it "
    "is: what these cards send goes through the host's memory."
)
_AMD_TABLE = r"Link Type between two GPUs|LINK TYPE TABLE:"
_AMD_LINK = re.compile(r"0|SELF|XGMI|PCIE|N/A|UNKNOWN")
_NAMED = 8  # pairs of GPUs, tables
# The links of a pair: RTX 20xx (1, 2), RTX 30xx and A30 to A6000 (4), DGX-2 and four H100 (6), A800
# and H800 (8), A100 and H100 NVL (12), H100 SXM and later (18). V100 and P100 in a mesh: 1 or 2.
_WHOLE = (1, 2, 4, 6, 8, 12, 18)
_MESH = 4
_NO_DEVICE = "No RDMA device is usable"
_RATE = re.compile(r"\s*(\d{1,4})\b")  # Gb/s: "200", "200 Gb/sec (4X HDR)"
_DROP = 0.6  # of the best; less is more than noise


def topology(finding: LogFinding, context: Context) -> Added:
    """Which GPUs have an RDMA device near them, as far as the matrix shows it."""
    found = parse_topology(finding.around)
    if not found.relations:
        return Added(("Its header or its rows are cut or not readable here.",))
    cut = [gpu for gpu in found.gpus if gpu not in found.lines]
    cause = [f"The rows of {joined(cut)} are cut or not readable here."] if cut else []
    cause += _between(found)
    if _over_pcie(found) and _WITHOUT_PEERS.search(context.facts.get("device")):
        cause.append(_NO_PEERS)
    if not found.nics:
        none = "It names no RDMA device (NIC), so it says nothing of the network."
        return Added((*cause, none), _WITHOUT_NVLINK if _over_pcie(found) else (), instead=True)
    others = _WITHOUT_NVLINK if _over_pcie(found) and len(_groups(found)) > 1 else ()
    cause.append(
        "To a device, GPUDirect RDMA wants PIX or PXB. That matters for traffic between nodes "
        "alone."
    )
    cause += [f"{words}." for words in _nearest(found)]
    node = Node(_NODE, topology=found)
    # A device that is far from the GPUs of these rows may be near one whose row is cut.
    near = {nic for gpu in found.read_gpus for nic in found.nics if found.near(gpu, nic, SWITCH)}
    whole = not cut or near == {*found.nics}
    told = _told(check_topology(node, find_links(node)) if whole else ())
    return Added((*cause, *told.cause), (*others, *told.fix), {"far_gpus": _far(found)})


def rdma_ports(finding: LogFinding, context: Context) -> Added:
    """Which ports are down, and what NCCL_IB_HCA follows from those that are up."""
    text = finding.around
    devices = parse_ibv_devinfo(text) or parse_ibstat(text) or parse_rdma_link(text)
    node = Node(_NODE, ports=parse_ibdev2netdev(text), devices=devices)
    links = find_links(node)
    told = _told(check_rdma(node, links, None))
    if len(up_devices(node)) < 1 == len(devices):  # the command may have named this one
        told = replace(told, cause=tuple(one for one in told.cause if _NO_DEVICE not in one))
    cause = told.cause or (f"The ports of {joined(up_devices(node))} are up.",)
    cause += (*_rates_differ(node),)
    if not (value := hca_list(node, links)):
        return told
    step = (
        "For transfers between nodes, by this output alone; leave out a device of the management "
        "or storage network (`ip route` names the interface of the default route):",
        f"$ {export_line('NCCL_IB_HCA', value)}",
    )
    return Added(cause, (*told.fix, *step), {"hca": value})


def _rates_differ(node: Node) -> Iterator[str]:
    """A sentence on ports that are up at different speeds."""
    up = up_devices(node)
    found = {one.device: _RATE.match(one.rate) for one in node.devices if one.device in up}
    rates = {device: int(rate[1]) for device, rate in found.items() if rate}
    if len({*rates.values()}) > 1:
        slow = [device for device, rate in rates.items() if rate < max(rates.values())]
        listed = ", ".join(f"{device} {rate} Gb/s" for device, rate in rates.items())
        yield (
            f"Their speeds differ ({listed}). If {joined(slow)} belongs to another network "
            "(storage, management), leave it out of NCCL_IB_HCA. If not, its cable, transceiver "
            "or switch port gives less than the others."
        )


def gid_table(finding: LogFinding, context: Context) -> Added:
    """The index of RoCE v2 with IPv4, as far as the table stands here."""
    tables = [shared for one in _GID_HEAD.split(finding.around)[1:] if (shared := _v2_indexes(one))]
    if len(tables) > 1 and not set.intersection(*tables):
        each = ", ".join(str(min(one)) for one in tables)
        return Added((_APART.format(each),), (_UNSET_APART,))
    gids = parse_show_gids(finding.around) or parse_devinfo_gids(finding.around)
    rows = _v2_rows(gids)
    bare = [one for one, indexes in rows.items() if one and not indexes]
    cause = [f"{joined(bare)} has no such row here."] if bare else []
    some = [indexes for indexes in rows.values() if indexes]
    shared = set.intersection(*some) if some else set()
    if not shared:
        apart = ["The index differs between devices, so no single NCCL_IB_GID_INDEX fits."]
        return Added((*cause, *(apart if some else ())), (_UNSET,))
    cause.append(f"Here that is index {min(shared)}.")
    return Added(tuple(cause), (_UNSET, f"$ {export_line('NCCL_IB_GID_INDEX', str(min(shared)))}"))


def _v2_indexes(text: str) -> set[int]:
    """The indexes of RoCE v2 with IPv4 that all devices of a table have."""
    rows = _v2_rows(parse_show_gids(text))
    return set.intersection(*rows.values()) if rows else set()


def _v2_rows(gids: tuple[Gid, ...]) -> dict[str, set[int]]:
    """List each device's indexes of RoCE v2 with IPv4."""
    node = Node(_NODE, gids=gids)
    return {gid.device: set(gid_indexes(node, gid.device)) for gid in gids}


def perftest(finding: LogFinding, context: Context) -> Added:
    """The average at the largest size."""
    rows = [(int(size), float(rate)) for size, rate in _RATES.findall(finding.around)]
    if not rows:
        return Added(("No row of the table can be read here.",))
    size, rate = max(rows)
    unit, byte = ("Gb/s", 1 / 8) if "Gb/sec" in finding.around else ("MB/s", 1e-3)
    shown = f"At the largest size here, {size:,} bytes, the average is {rate:,.1f} {unit}"
    return Added((f"{shown}, which is {rate * byte:,.1f} GB/s.",))


def nccl_tests(finding: LogFinding, context: Context) -> Added:
    """What the rows show: the largest size, and whether larger transfers are slower."""
    parts = (_ROW.findall(part) for part in _TABLE_ENDS.split(finding.around))
    read = [[(int(size), float(bw), wrong) for size, bw, wrong in rows] for rows in parts]
    runs = [rows for rows in read if any(size for size, *_ in rows)]
    last = _RANKS.findall(finding.around.partition("algbw")[0])  # those just above the table
    if last == ["0"] and not any(bw for rows in runs for _, bw, _ in rows):
        return Added((_ALONE,), (_MORE_RANKS,), instead=True)
    if not runs:
        return Added(("No row of the table can be read here, and the average says little.",))
    cause = [
        "A link of 400 Gb/s carries 50 GB/s at most, one of 200 Gb/s 25. The average that the tool "
        "prints counts small sizes too, so compare the number at the largest size instead."
    ]
    for number, rows in enumerate(runs[:_NAMED], 1):
        cause += _of_run(rows, f" in table {number}" if len(runs) > 1 else "")
    fix = ["Several nodes: the preflight says what holds RDMA back.", "$ tuner preflight"]
    if any(wrong.strip("0") for rows in runs for *_, wrong in rows) or _FAILED.search(
        finding.around
    ):
        cause.append(
            "Results are wrong (column #wrong, `Out of bounds values`): a GPU, a link or a driver "
            "is faulty, or this release of NCCL or of the test has a bug."
        )
        fix.insert(0, "Run another size and a newer NCCL. While results are wrong, trust no speed.")
    return Added(tuple(cause), tuple(fix))


def _of_run(rows: Sequence[tuple[int, float, str]], table: str) -> Iterator[str]:
    """Sentences on one table."""
    size, last, _ = max(rows)
    at, best, _ = max(rows, key=lambda row: row[1])
    yield (
        f"At the largest size{table or ' here'}, {size:,} bytes, the bus bandwidth (busbw) is "
        f"{last:g} GB/s."
    )
    if last < _DROP * best:
        yield (
            f"It was {best:g} GB/s at {at:,} bytes: larger transfers are slower, which is "
            "not as it should be. That points to lost packets (flow control of RoCE on cards and "
            "switch), or to traffic through the processor (ACS, IOMMU, no GPUDirect RDMA)."
        )


def amd_topology(finding: LogFinding, context: Context) -> Added:
    """Which of AMD's GPUs XGMI joins."""
    links: list[list[str]] = []
    table = re.split(_AMD_TABLE, finding.around, maxsplit=1)[-1]
    for line in table.splitlines()[1:]:
        words = line.replace(">", " ").split()
        cells = [word for word in words[1:] if _AMD_LINK.fullmatch(word)]
        if len(cells) > 1 and len(cells) == len(words) - 1:
            links.append(cells)
        elif links:
            break  # another table follows
    many = len(links)
    if many < 2 or any(len(row) != many for row in links):
        return Added(("Its rows are cut or not readable here.",))
    joined_by = [{i, *(j for j in range(many) if row[j] == "XGMI")} for i, row in enumerate(links)]
    groups = {tuple(sorted(group)) for group in joined_by if len(group) > 1}
    if not groups:
        return Added(("No two GPUs are joined by XGMI: all-reduces of them run over PCIe.",))
    if groups == {tuple(range(many))}:
        return Added((f"XGMI joins each of the {many} GPUs with each other one.",))
    if sum(map(len, groups)) != len(set().union(*groups)):
        return Added(("XGMI joins some of the GPUs; other pairs go over PCIe.",))
    named = [joined([f"GPU{one}" for one in group]) for group in sorted(groups)]
    fewest, first = min(map(len, groups)), min(groups)
    return Added(
        (
            f"XGMI joins {'; and '.join(named)}. All other pairs go over PCIe, which sets the pace "
            "of an all-reduce over more GPUs than these.",
        ),
        (
            f"Keep --tp at {fewest} or less, within a group, and start one server for each group:",
            f"$ {export_line('HIP_VISIBLE_DEVICES', ','.join(map(str, first)))}",
        ),
    )


def _told(findings: Iterable[Finding]) -> Added:
    """Findings as sentences."""
    told = [*findings]
    return Added(
        tuple(f"{one.message[:1].upper()}{one.message[1:]}." for one in told),
        tuple(f"{one.fix[:1].upper()}{one.fix[1:]}." for one in told),
    )


def _between(found: Topology) -> list[str]:
    """Sentences on how the GPUs reach each other."""
    read = found.read_gpus
    these = "" if len(read) == len(found.gpus) else " of the rows that stand here"
    kinds = _pairs(found)
    if not kinds:
        return []
    linked = [f"{a} with {b}" for (a, b), kind in kinds.items() if kind.startswith("NV")]
    missing = [*_links_missing(kinds)]
    if len(linked) == len(kinds):
        return [f"Each GPU{these} has NVLink to each other one.", *missing]
    if linked:
        return [
            *missing,
            f"NVLink joins only {', '.join(linked)}; all other pairs go over PCIe, so an "
            "all-reduce over more GPUs than these is as slow as PCIe.",
        ]
    groups = _groups(found)
    apart = (
        f"So {' and '.join(f'({joined(group)})' for group in groups)} are groups of near GPUs: a "
        "model that fits into one group sends least (CUDA_VISIBLE_DEVICES)."
    )
    return [
        f"No GPU{these} has NVLink to another one: all-reduces of these run over PCIe.",
        *_over_ways(kinds),
        *([apart] if len(groups) > 1 else []),
        "Tensor parallelism adds up over its GPUs in each layer, so the slowest of these links "
        "sets its pace.",
    ]


def _links_missing(kinds: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Sentences on pairs that have fewer links than their bridge or switch."""
    counts = {pair: int(kind[2:]) for pair, kind in kinds.items() if kind[2:].isdecimal()}
    most = max(counts.values(), default=0)
    # Below a switch each pair has equally many. A mesh of bridges has one link or two for each.
    few = {pair: one for pair, one in counts.items() if one not in _WHOLE or most > one >= _MESH}
    if few:
        named = [f"{a} with {b} (NV{one})" for (a, b), one in few.items()]
        yield (
            f"Fewer links than usual: {', '.join(named[:_NAMED])}"
            f"{' and others' if len(named) > _NAMED else ''}. Whole bridges and switches show "
            f"{', '.join(f'NV{one}' for one in _WHOLE)} (IBM's AC922: NV3), and below one switch "
            "each pair the same. So a link seems to be down, or a bridge sits badly: "
            "`nvidia-smi nvlink -s` shows each link, and `nvidia-smi nvlink -e` its errors."
        )


def _over_ways(kinds: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Sentences on the ways of pairs without NVLink."""
    ways = [kind for kind in _WAYS if kind in kinds.values()]
    if not ways:
        return
    nearest, farthest = ways[0], ways[-1]
    if nearest == farthest:
        yield f"The link between each two is {nearest}: {_WAYS[nearest]}."
        return
    near = [f"{a} with {b}" for (a, b), kind in kinds.items() if kind == nearest]
    named = ", ".join(near[:_NAMED]) + (" and others" if len(near) > _NAMED else "")
    yield f"The nearest are {named} ({nearest}, {_WAYS[nearest]})."
    yield f"The farthest are {farthest}: {_WAYS[farthest]}."


def _pairs(found: Topology) -> dict[tuple[str, str], str]:
    """The link of each two GPUs, as far as rows show it."""
    read = found.read_gpus
    pairs = [(a, b) for a in read for b in found.gpus if a != b and (a < b or b not in read)]
    return {pair: found.relations.get(pair, "") for pair in pairs}


def _groups(found: Topology) -> list[list[str]]:
    """The GPUs that are near each other, if there are several such sets of two GPUs or more."""
    kinds = [kind for kind in _WAYS if kind in _pairs(found).values()]
    near = [kind for kind in kinds if kind not in (kinds[-1], *_FAR)]
    groups: list[list[str]] = []
    for gpu in found.read_gpus:
        mine = [one for one in groups if found.relations.get((one[0], gpu), "") in near]
        if mine:
            mine[0].append(gpu)
        else:
            groups.append([gpu])
    return groups if all(len(one) > 1 for one in groups) else []


def _over_pcie(found: Topology) -> bool:
    return any(not kind.startswith("NV") for kind in _pairs(found).values())


def _far(found: Topology) -> list[str]:
    return [gpu for gpu in found.read_gpus if found.nearest(gpu)[0] in THROUGH]


def _nearest(found: Topology) -> list[str]:
    """A sentence for the GPUs of each set of nearest devices below their PCIe switch."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu in found.read_gpus:
        if gpu not in _far(found) and found.nearest(gpu)[1]:
            groups.setdefault(found.nearest(gpu)[1], []).append(gpu)
    words = [f"{joined(nics)} with {joined(gpus)}" for nics, gpus in groups.items()]
    return [f"Below one PCIe switch are {'; '.join(words)}"] if words else []
