"""Captures of nodes, laid from short descriptions in the formats of the tools.

tests/data/nodes/NAME.toml describes a node: its RDMA devices, GPUs, interfaces and routes, with the
right answer. A device's `{i}` counts from `first` and `{n}` from 0.
"""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Any

from tuner.errors import BadInput
from tuner.files import parse_toml

NODES = Path(__file__).parent / "data" / "nodes"
_USUAL = {
    "count": 1,
    "first": 0,
    "link": "Ethernet",
    "rate": 400,
    "state": "ACTIVE",
    "netdev": "",
    "up": True,  # of the netdev, by ibdev2netdev
    "ipv4": "",
    "ipv6": "",
    "gid": 3,  # index of RoCE v2 with the address
    "ndev": "",  # of the address's entries; default: the netdev
    "near": "",  # the number of the GPU on whose switch it is
    "virtual": False,
}
Device = dict[str, Any]


def shapes() -> list[str]:
    return sorted(path.stem for path in NODES.glob("*.toml"))


def read_shape(name: str) -> dict[str, Any]:
    return parse_toml((NODES / f"{name}.toml").read_text(), name, BadInput)


def lay(shape: dict[str, Any], folder: Path) -> Path:
    """Write the captured outputs of a node into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    devices = [device for group in shape.get("rdma", []) for device in _devices(group)]
    without = shape.get("without", [])  # tools that are not there
    if "sysfs" not in without:
        (folder / "sys/class/infiniband").mkdir(parents=True, exist_ok=True)
        for device in devices:
            _sysfs(device, folder / "sys/class/infiniband" / device["name"])
    _capture_notes(folder, "absent" if shape.get("no_rdma_module") else "ok")
    texts = {
        "ibdev2netdev": "".join(map(_ibdev2netdev, devices)),
        "show_gids": "".join(_show_gids(device) for device in devices),
        "nvidia-smi-topo": _topology(shape, devices),
        "nvidia-smi-q": "".join(_gpu(i, shape) for i in range(shape.get("gpus", 8))),
    }
    for tool, text in texts.items():
        if tool not in without and text:
            (folder / f"{tool}.txt").write_text(text)
    addresses = [_interface(one) for one in [*_netdevs(devices), *shape.get("interface", [])]]
    by_name = {one["ifname"]: one for one in addresses}  # the description goes first
    (folder / "ip-addr.json").write_text(json.dumps([*by_name.values()]))
    (folder / "ip-route.json").write_text(json.dumps(shape.get("route", [])))
    (folder / "versions.json").write_text(json.dumps(shape.get("versions", {})))
    return folder


def _devices(group: dict[str, Any]) -> list[Device]:
    given = {**_USUAL, **group}
    found = []
    numbers = given.get("numbers") or range(given["first"], given["first"] + given["count"])
    for at, i in enumerate(numbers):
        words = {k: v.format(i=i, n=at) for k, v in given.items() if isinstance(v, str)}
        found.append({**given, **words, "at": at})
    return found


def _gids(device: Device) -> list[tuple[int, str, str, str, str]]:
    """(index, GID, IPv4, version, interface) of each entry."""
    if device["link"] != "Ethernet":
        return []
    netdev, ndev = device["netdev"], device["ndev"] or device["netdev"]
    local = f"fe80:0000:0000:0000:0000:00ff:fe00:{device['at'] + 1:04x}"
    entries = [(0, local, "", "v1", netdev), (1, local, "", "v2", netdev)]
    for text in filter(None, (device["ipv4"], device["ipv6"])):
        ip = ipaddress.ip_interface(text).ip
        mapped = ipaddress.ip_address(f"::ffff:{ip}") if ip.version == 4 else ip
        gid, ipv4 = mapped.exploded, str(ip) if ip.version == 4 else ""
        entries.append((device["gid"] - 1, gid, ipv4, "v1", ndev))
        entries.append((device["gid"], gid, ipv4, "v2", ndev))
    return entries


def _sysfs(device: Device, folder: Path) -> None:
    port = folder / "ports/1"
    states = {"ACTIVE": "4: ACTIVE", "DOWN": "1: DOWN", "INIT": "2: INIT"}
    up = device["state"] != "DOWN"
    files = {
        port / "state": states[device["state"]],
        port / "phys_state": "5: LinkUp" if up else "3: Disabled",
        port / "link_layer": device["link"],
        port / "rate": f"{device['rate']} Gb/sec (4X NDR)" if up else "40 Gb/sec (4X QDR)",
    }
    for index, gid, _, version, interface in _gids(device):
        files[port / f"gids/{index}"] = gid
        files[port / f"gid_attrs/types/{index}"] = "RoCE v2" if version == "v2" else "IB/RoCE v1"
        files[port / f"gid_attrs/ndevs/{index}"] = interface
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    for name in [f"net/{device['netdev']}"] if device["netdev"] else []:
        (folder / "device" / name).mkdir(parents=True, exist_ok=True)
    if device["virtual"]:
        (folder / "device/physfn").mkdir(parents=True, exist_ok=True)


def _ibdev2netdev(device: Device) -> str:
    if not device["netdev"]:
        return ""
    state = "Up" if device["up"] and device["state"] == "ACTIVE" else "Down"
    return f"{device['name']} port 1 ==> {device['netdev']} ({state})\n"


def _show_gids(device: Device) -> str:
    rows = _gids(device)
    return "".join(
        f"{device['name']}\t1\t{index}\t{gid}\t{ipv4}\t{version}\t{interface}\n"
        for index, gid, ipv4, version, interface in rows
    )


def _topology(shape: dict[str, Any], devices: list[Device]) -> str:
    """`nvidia-smi topo -m`: GPUs joined by NVLink, or far from each other; and the devices."""
    if not shape.get("topology"):
        return ""
    gpus = [f"GPU{i}" for i in range(shape.get("gpus", 8))]
    far = shape.get("far", "SYS")
    lines = ["\t".join(["", *gpus, *(f"NIC{i}" for i in range(len(devices))), "CPU Affinity"])]

    def relation(gpu: int, device: Device) -> str:
        return "PIX" if device["near"] == str(gpu) else far

    for i, gpu in enumerate(gpus):
        between = [" X " if gpu == other else shape.get("between", "NV18") for other in gpus]
        lines.append("\t".join([gpu, *between, *(relation(i, d) for d in devices), "0-47\t0"]))
    for j, device in enumerate(devices):
        row = [" X " if other is device else far for other in devices]
        lines.append("\t".join([f"NIC{j}", *(relation(i, device) for i in range(len(gpus))), *row]))
    legend = [f"  NIC{j}: {device['name']}" for j, device in enumerate(devices)]
    return "\n".join([*lines, "", "NIC Legend:", "", *legend]) + "\n"


def _gpu(i: int, shape: dict[str, Any]) -> str:
    names = shape.get("gpu", "NVIDIA H100 80GB HBM3")
    name = names[i] if isinstance(names, list) else names
    used = shape.get("used_mib", [])
    return (
        f"GPU 00000000:{0x10 + i:02X}:00.0\n    Product Name                          : {name}\n"
        "    FB Memory Usage\n        Total                             : 81559 MiB\n"
        f"        Used                              : {used[i] if i < len(used) else 4} MiB\n"
    )


def _netdevs(devices: list[Device]) -> list[dict[str, Any]]:
    """The interfaces of RDMA devices, with the addresses that are no VLAN's."""
    found = []
    for device in devices:
        if device["netdev"]:
            own = [] if device["ndev"] else [ip for ip in (device["ipv4"], device["ipv6"]) if ip]
            found.append({"name": device["netdev"], "ips": own, "up": device["state"] == "ACTIVE"})
    return found


def _interface(one: dict[str, Any]) -> dict[str, Any]:
    info = [ipaddress.ip_interface(ip) for ip in one.get("ips", [])]
    return {
        "ifname": one["name"],
        "operstate": "UP" if one.get("up", True) else "DOWN",
        **{key: one[key] for key in ("link", "master") if key in one},
        "addr_info": [
            {"local": str(ip.ip), "prefixlen": ip.network.prefixlen, "scope": "global"}
            for ip in info
        ],
    }


def _capture_notes(folder: Path, sys: str) -> None:
    notes = {"hostname": folder.name, "notes": {"sys": sys}}
    (folder / "capture.json").write_text(json.dumps(notes))
