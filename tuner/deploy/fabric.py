#!/usr/bin/env python3
"""Measure the network between GPU nodes, beside the rates of its cards and links.

A bundle has this file as it is: it needs Python 3.8 or later; `bandwidth` needs perftest's
ib_write_bw, and `all-reduce` torch, as in an engine's image. Rates are in GB/s (1e9 bytes).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# GB/s of a PCIe lane: transfers a second, less the line code (128b/130b from generation 3 on).
LANE = {"2.5": 0.25, "5": 0.5, "5.0": 0.5, "8": 0.985, "8.0": 0.985, "16": 1.969, "16.0": 1.969}
LANE.update({"32": 3.938, "32.0": 3.938, "64": 7.563, "64.0": 7.563})
# Packets of 256 bytes carry about 26 bytes of headers: NVIDIA's guides count on 85 to 90 %.
PCIE_PAYLOAD = 0.87
PORT_PAYLOAD = 0.93  # RoCE at an MTU of 1,024 bytes; more at 4,096
BANDWIDTH_OK = 0.9  # of a card's rate
ALL_REDUCE_OK = 0.6  # of the limit: a ring also waits at each step
FIRST_PORT = 18515  # of ib_write_bw; the next port for each further device
SIZES = [2**20, 2**23, 2**26, 2**29]  # bytes
TURNS = 20


def device_rate(folder: Path) -> tuple[float, float | None]:
    """Return (GB/s of the port, GB/s of the card's PCIe link or None) of a /sys/class/infiniband
    entry.
    """
    rate = _word(folder / "ports/1/rate").split(" ")[0]
    port = float(rate) / 8 * PORT_PAYLOAD if re.fullmatch(r"[0-9]+(\.[0-9]+)?", rate) else 0.0
    speed = LANE.get(_word(folder / "device/current_link_speed").split(" ")[0])
    width = _word(folder / "device/current_link_width")
    pcie = speed * int(width) * PCIE_PAYLOAD if speed and width.isdigit() else None
    return port, pcie


def chosen_devices(root: Path, asked: str) -> list[str]:
    """Return the RDMA devices that NCCL_IB_HCA asks for, in the order of their numbers."""
    known = sorted((p.name for p in root.iterdir()), key=_natural) if root.is_dir() else []
    names = [n.partition(":")[0] for n in asked.lstrip("^=").split(",") if n]
    exact = asked.lstrip("^").startswith("=")
    found = [d for d in known if any(d == n if exact else d.startswith(n) for n in names)]
    if not asked or asked.startswith("^"):
        return [d for d in known if d not in found]
    return found


def expectations(root: Path, asked: str) -> dict[str, float]:
    """Return {device: GB/s that it can carry}."""
    found = {}
    for device in chosen_devices(root, asked):
        port, pcie = device_rate(root / device)
        found[device] = min(port, pcie) if pcie else port
    return found


def wanted_rate(expected: dict[str, float], device: str) -> float:
    """Return the GB/s that a device should carry: a port at less than half of the others' rate is
    no rail.
    """
    return max(expected[device], max(expected.values()) / 2)


def written(text: str) -> float | None:
    """Return the average GB/s in the output of `ib_write_bw --report_gbits`; None without a
    result.
    """
    rows = re.findall(r"^\s*[0-9]+\s+[0-9]+\s+[0-9.]+\s+([0-9.]+)\s+[0-9.]+", text, re.MULTILINE)
    return float(rows[-1]) / 8 if rows else None


def all_reduce_limit(cards: dict[str, float], topology: str, links: str) -> tuple[float, str]:
    """Return (GB/s that bounds the bus bandwidth of an all-reduce over several nodes, the reason).

    Rings go through all cards of a node, so their sum bounds it. Without NVLink they also go
    through each GPU's PCIe link.
    """
    limit, why = sum(cards.values()), "the RDMA cards together"
    if not re.search(r"\bNV[0-9]+\b", topology):
        for generation, width in re.findall(r"([1-6]), *([0-9]+)", links):
            lane = (0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563)[int(generation)]
            pcie = lane * int(width) * PCIE_PAYLOAD
            if pcie < limit or not limit:
                limit, why = pcie, "a GPU's PCIe link"
    return limit, why


def verdict(measured: float, limit: float, part: float) -> str:
    """Return "ok", or the places to look at."""
    if not limit:
        return "nothing to compare with"
    if measured >= part * limit:
        return "ok"
    percent = f"{part:.0%} of {limit:.1f} GB/s"
    return f"SLOW: less than {percent}; see preflight: ports, PCIe, ACS, IOMMU"


def serve(devices: list[str], options: argparse.Namespace) -> int:
    """Answer `bandwidth` of another node, on every device at once."""
    commands = [_perftest(device, number, options) for number, device in enumerate(devices)]
    started = [subprocess.Popen(command) for command in commands]  # noqa: S603 - perftest
    return max((process.wait() for process in started), default=1)


def bandwidth(expected: dict[str, float], options: argparse.Namespace) -> int:
    """Write to another node through each device in turn."""
    slow = 0
    for number, device in enumerate(expected):
        output = _output(*_perftest(device, number, options), options.host)
        measured = written(output)
        if measured is None:
            say("%-10s no result: %s", device, " ".join(output.split())[-200:] or "no output")
            slow += 1
            continue
        said = verdict(measured, wanted_rate(expected, device), BANDWIDTH_OK)
        slow += said != "ok"
        say("%-10s %6.1f GB/s of %6.1f  %s", device, measured, expected[device], said)
    return 1 if slow or not expected else 0


def all_reduce(expected: dict[str, float], options: argparse.Namespace) -> int:
    """Sum tensors over all ranks; started by torch.distributed.run on every node."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if options.backend == "nccl":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    rate = 0.0
    for size in [size for size in SIZES if size <= options.largest]:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)
        dist.all_reduce(data)  # NCCL connects here
        if data[0].item() != ranks or data[-1].item() != ranks:
            say("rank %d: ones summed over %d ranks gave %s", rank, ranks, data[-1].item())
            return 1
        data.zero_()
        rate = _bus_bandwidth(dist, torch, data, ranks)
        if rank == 0:
            say("%10d bytes  %7.2f GB/s bus bandwidth", size, rate)
    dist.destroy_process_group()
    if rank:
        return 0
    limit, why = all_reduce_limit(expected, _output("nvidia-smi", "topo", "-m"), _links())
    said = verdict(rate, limit, ALL_REDUCE_OK)
    say("%d ranks: %.2f GB/s; %s carry %.1f: %s", ranks, rate, why, limit, said)
    return 0 if said in ("ok", "nothing to compare with") else 1


def _bus_bandwidth(dist: Any, torch: Any, data: Any, ranks: int) -> float:
    """Return the GB/s on each link of a ring: 2 (n - 1) / n of the bytes, as nccl-tests count
    it.
    """
    wait = torch.cuda.synchronize if data.is_cuda else dist.barrier
    wait()
    start = time.perf_counter()
    for _ in range(TURNS):
        dist.all_reduce(data)
    wait()
    seconds = (time.perf_counter() - start) / TURNS
    rate: float = data.numel() * 4 / seconds / 1e9 * 2 * (ranks - 1) / ranks
    return rate


def _perftest(device: str, number: int, options: argparse.Namespace) -> list[str]:
    command = ["ib_write_bw", "-d", device, "-p", str(FIRST_PORT + number), "-F", "--report_gbits"]
    return [*command, "-x", options.gid] if options.gid else command


def say(text: str, *values: object) -> None:
    """Print a line at once: several processes write here."""
    sys.stdout.write(text % values + "\n")
    sys.stdout.flush()


def _links() -> str:
    query = "--query-gpu=pcie.link.gen.max,pcie.link.width.current"
    return _output("nvidia-smi", query, "--format=csv,noheader")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key under which mlx5_10 comes after mlx5_9."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((len(p), p) if p.isdigit() else (0, p) for p in parts)


def main(arguments: list[str] | None = None) -> int:
    """Run one of the tests. Return 0: as expected; 1: slow, or no result; 2: no tool."""
    parser = argparse.ArgumentParser(description="Measure the network between GPU nodes.")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys/class/infiniband"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("expect", help="print the rates that the cards of this node can carry")
    for name, text in (("serve", "answer `bandwidth`"), ("bandwidth", "write to a serving node")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--gid", default=os.environ.get("NCCL_IB_GID_INDEX", ""))
        if name == "bandwidth":
            command.add_argument("host")
    command = commands.add_parser("all-reduce", help="sum tensors over all GPUs of all nodes")
    command.add_argument("--backend", default="nccl")
    command.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    options = parser.parse_args(arguments)
    if options.command in ("serve", "bandwidth") and not shutil.which("ib_write_bw"):
        sys.stderr.write("error: ib_write_bw is not installed: it is in the package perftest\n")
        return 2
    expected = expectations(options.sysfs, os.environ.get("NCCL_IB_HCA", ""))
    if options.command == "serve":
        return serve(list(expected), options)
    if options.command == "bandwidth":
        return bandwidth(expected, options)
    if options.command == "all-reduce":
        return all_reduce(expected, options)
    for device, rate in expected.items():
        slow = "  SLOW: the others are faster" if rate < wanted_rate(expected, device) else ""
        say("%-10s %6.1f GB/s%s", device, rate, slow)
    say("%-10s %6.1f GB/s", "together", sum(expected.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
