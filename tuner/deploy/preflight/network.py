"""Read the output of RDMA tools, /sys/class/infiniband, `ip -j addr`, `ip -j route`,
/proc/net/tcp and `getent ahosts`. Unknown lines and malformed values are ignored.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.deploy.preflight.facts import (
    Address,
    Gid,
    Interface,
    Listener,
    PcieLink,
    RdmaDevice,
    RdmaPort,
    natural,
)

# `mlx5_1 port 1 ==> xgbe1 (Up)`. With -v, the line also has the bus, the card and the firmware.
_IBDEV2NETDEV = re.compile(
    r"^\s*(?:[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\s+)?(\S+)\s+(?:.*\s)?port\s+([0-9]{1,3})\s+"
    r"(?:\(\w+\)\s+)?==>\s+(?:(\S+)\s+)?\((\w+)\)",
    re.IGNORECASE,
)
_GID = r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}"
_SHOW_GIDS = re.compile(
    rf"^\s*(\S+)\s+([0-9]{{1,3}})\s+([0-9]{{1,3}})\s+({_GID})\s+"
    r"(?:([0-9]{1,3}(?:\.[0-9]{1,3}){3})\s+)?(v1|v2)(?:\s+(\S+))?\s*$",
    re.IGNORECASE,
)
_CA = re.compile(r"\s*(?:CA '(?P<device>[^']+)'|Port (?P<port>[0-9]{1,3}):)\s*$")
_PORT = re.compile(  # a heading of `ibstatus`
    r"\s*Infiniband device '(?P<device>[^']+)' port (?P<port>[0-9]{1,3}) status:\s*$"
)
_HCA = re.compile(r"\s*(?:hca_id:\s*(?P<device>\S+)|port:\s*(?P<port>[0-9]{1,3}))\s*$")
_DEVINFO_GID = re.compile(  # `GID[  3]:    ::ffff:10.0.0.1, RoCE v2`
    r"\s*GID\[\s*([0-9]{1,3})\]:\s*((?:::ffff:)?([0-9.]{7,15})|[0-9a-f:]+), RoCE v([12])\s*$"
)
_LINK = re.compile(  # `link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0`
    r"^.*\blink (\S+)/([0-9]{1,3}) (?:.*? )?state (\w+) physical_state (\w+)(?: netdev (\S+))?",
    re.MULTILINE,
)
_END = "\0"
_MAPPED = "0000:0000:0000:0000:0000:ffff:"  # prefix of an IPv4 address in IPv6 form
_LARGEST_FILE = 4096  # bytes; a sysfs file is not larger
_SPEED_OF_GENERATION = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4}
_SPEED_OF_GENERATION.update({"32": 5, "32.0": 5, "64": 6, "64.0": 6})


def parse_ibdev2netdev(text: str) -> tuple[RdmaPort, ...]:
    """Return the ports in the output of `ibdev2netdev` or `ibdev2netdev -v`."""
    found = []
    for line in text.splitlines():
        match = _IBDEV2NETDEV.match(line)
        if match:
            device, port, interface, state = match.groups()
            up = state.lower() == "up"
            found.append(RdmaPort(device, int(port), interface or "", up, line.strip()))
    return tuple(found)


def parse_show_gids(text: str) -> tuple[Gid, ...]:
    """Return the GID table entries in the output of `show_gids`."""
    found = []
    for line in text.splitlines():
        match = _SHOW_GIDS.match(line)
        if match:
            device, port, index, gid, ipv4, version, interface = match.groups()
            found.append(
                Gid(
                    device,
                    int(port),
                    int(index),
                    gid.lower(),
                    ipv4 or mapped_ipv4(gid),
                    version.lower(),
                    interface or "",
                    line.strip(),
                )
            )
    return tuple(found)


def parse_devinfo_gids(text: str) -> tuple[Gid, ...]:
    """Return the GID table entries in the output of `ibv_devinfo -v`."""
    found, device, port = [], "", 1
    for line in text.splitlines():
        heading, entry = _HCA.match(line), _DEVINFO_GID.match(line)
        if heading and heading["device"]:
            device = heading["device"]
        elif heading:
            port = int(heading["port"])
        elif entry:
            index, gid, ipv4, version = entry.groups()
            ipv4 = ipv4 or mapped_ipv4(gid)
            found.append(Gid(device, port, int(index), gid, ipv4, f"v{version}", "", line.strip()))
    return tuple(found)


def parse_ibstat(text: str) -> tuple[RdmaDevice, ...]:
    """Return the ports in the output of `ibstat` or `ibstatus`."""
    stat = _listed(text, _CA, ("State", "Physical state", "Link layer", "Rate"))
    return (*stat, *_listed(text, _PORT, ("state", "phys state", "link_layer", "rate")))


def parse_ibv_devinfo(text: str) -> tuple[RdmaDevice, ...]:
    """Return the ports in the output of `ibv_devinfo` or `ibv_devinfo -v`."""
    return tuple(_listed(text, _HCA, ("state", "phys_state", "link_layer", "rate")))


def parse_rdma_link(text: str) -> tuple[RdmaDevice, ...]:
    """Return the ports in the output of `rdma link`."""
    return tuple(
        RdmaDevice(device, int(port), state, physical, "", "", interface)
        for device, port, state, physical, interface in _LINK.findall(text)
    )


def _listed(
    text: str, heading: re.Pattern[str], fields: tuple[str, str, str, str]
) -> Iterator[RdmaDevice]:
    """Yield the ports in `name: value` lines below headings, which name a device or count a
    port.
    """
    device, port = "", 0
    values: dict[str, str] = {}
    for line in [*text.splitlines(), _END]:
        found = heading.match(line)
        if device and port and (found or line == _END):
            state, physical, layer, rate = (values.get(field, "") for field in fields)
            state, physical = (word.rpartition(": ")[2] for word in (state, physical))  # 4: ACTIVE
            state = state.partition(" ")[0].upper().replace("PORT_", "")
            yield RdmaDevice(device, port, state, physical, layer, rate)
        if found and found["device"]:
            device, port, values = found["device"], int(found["port"] or 0), {}
        elif found:
            port, values = int(found["port"]), {}
        else:
            key, _, value = line.partition(":")
            values.setdefault(key.strip(), value.strip())


def mapped_ipv4(gid: str) -> str:
    """Return the IPv4 address that a GID holds, or an empty string."""
    folded = gid.lower()
    if not re.fullmatch(_GID, folded) or not folded.startswith(_MAPPED):
        return ""
    digits = folded[len(_MAPPED) :].replace(":", "")
    return ".".join(str(int(digits[i : i + 2], 16)) for i in range(0, 8, 2))


def read_sysfs(root: Path) -> tuple[tuple[RdmaDevice, ...], tuple[Gid, ...]]:
    """Return the devices and GIDs in /sys/class/infiniband, or in a copy of it."""
    devices: list[RdmaDevice] = []
    gids: list[Gid] = []
    for device in _folders(root):
        for port in _folders(device / "ports"):
            if not port.name.isascii() or not port.name.isdigit():
                continue
            entries = list(_port_gids(device.name, port))
            interface = entries[0].interface if entries else _first_name(device / "device" / "net")
            devices.append(_device(device, port, interface))
            gids.extend(entries)
    return tuple(devices), tuple(gids)


def _device(device: Path, port: Path, interface: str) -> RdmaDevice:
    numa = _word(device / "device" / "numa_node")
    return RdmaDevice(
        device.name,
        int(port.name[:3]),
        _state(port / "state"),
        _state(port / "phys_state"),
        _word(port / "link_layer"),
        _word(port / "rate"),
        interface,
        int(numa) if re.fullmatch(r"[0-9]{1,4}", numa) else None,  # -1: unknown to the firmware
        _pcie(device / "device"),
        _slot(device / "device" / "uevent"),
        (device / "device" / "physfn").is_dir(),
    )


def _port_gids(device: str, port: Path) -> Iterator[Gid]:
    try:
        names = sorted((p.name for p in (port / "gids").iterdir()), key=natural)
    except OSError:
        return
    for name in names:
        gid = _word(port / "gids" / name).lower()
        used = re.fullmatch(_GID, gid) and gid.strip("0:")
        if not used or not re.fullmatch(r"[0-9]{1,3}", name):
            continue
        kind = _word(port / "gid_attrs" / "types" / name)
        version = "v2" if "v2" in kind else "v1"
        interface = _word(port / "gid_attrs" / "ndevs" / name)
        line = f"{device}/ports/{port.name}/gids/{name}: {gid} {kind}"
        yield Gid(
            device, int(port.name[:3]), int(name), gid, mapped_ipv4(gid), version, interface, line
        )


def _slot(uevent: Path) -> str:
    match = re.search(r"^PCI_SLOT_NAME=([0-9a-f:]{12})\.[0-7]$", _word(uevent), re.MULTILINE)
    return match.group(1) if match else ""


def _pcie(folder: Path) -> PcieLink | None:
    speeds = [_word(folder / f"{which}_link_speed").split(" ")[0] for which in ("current", "max")]
    widths = [_word(folder / f"{which}_link_width") for which in ("current", "max")]
    if not all(s in _SPEED_OF_GENERATION for s in speeds):
        return None
    if not all(re.fullmatch(r"[0-9]{1,2}", w) for w in widths):
        return None
    now, most = (_SPEED_OF_GENERATION[s] for s in speeds)
    return PcieLink(now, most, int(widths[0]), int(widths[1]))


def _state(path: Path) -> str:
    return _word(path).rpartition(": ")[2]  # "4: ACTIVE"


def _word(path: Path) -> str:
    try:
        if not path.is_file():  # reading a pipe would block
            return ""
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _folders(path: Path) -> list[Path]:
    try:
        return sorted((p for p in path.iterdir() if p.is_dir()), key=lambda p: natural(p.name))
    except OSError:
        return []


def _first_name(path: Path) -> str:
    try:
        return min((p.name for p in path.iterdir()), default="")
    except OSError:
        return ""


_LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h
_ENVIRONMENT_LINE = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")


def parse_ip_addr(text: str) -> tuple[Interface, ...]:
    """Return the interfaces and their addresses in the output of `ip -j addr`."""
    found = []
    for entry in _objects(text):
        name = entry.get("ifname")
        if not isinstance(name, str) or not name:
            continue
        flags = entry.get("flags")
        # operstate is UNKNOWN for working loopback interfaces and tunnels.
        up = entry.get("operstate") not in ("DOWN", "LOWERLAYERDOWN", "NOTPRESENT")
        if isinstance(flags, list) and "UP" not in flags:
            up = False
        below = [entry.get(key) for key in ("link", "master")]
        link, master = (other if isinstance(other, str) else "" for other in below)
        addresses = tuple(_addresses(entry.get("addr_info")))
        found.append(Interface(name, up, addresses, link, master))
    return tuple(found)


def _addresses(value: object) -> list[Address]:
    found = []
    for entry in value if isinstance(value, list) else []:
        if not isinstance(entry, dict):
            continue
        local, prefix, scope = entry.get("local"), entry.get("prefixlen"), entry.get("scope")
        if isinstance(local, str) and is_ip(local) and type(prefix) is int:
            found.append(Address(local, prefix, scope if isinstance(scope, str) else ""))
    return found


def parse_ip_route(text: str) -> str:
    """Return the interface of the living default route in `ip -j route`, or an empty string.

    A route over several ways has them in `nexthops`; the first living way counts.
    """
    best: tuple[int, str] | None = None
    for entry in _objects(text):
        metric = entry.get("metric", 0)
        if entry.get("dst") != "default" or type(metric) is not int:
            continue
        ways = entry.get("nexthops")
        for way in [entry, *(ways if isinstance(ways, list) else ())]:
            device = way.get("dev") if isinstance(way, dict) and not _is_dead(way) else None
            if isinstance(device, str):
                best = min(best or (metric, device), (metric, device), key=lambda one: one[0])
    return best[1] if best else ""


def _is_dead(route: dict[str, Any]) -> bool:
    flags = route.get("flags")
    return isinstance(flags, list) and ("dead" in flags or "linkdown" in flags)


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Return the listening TCP sockets in /proc/net/tcp or /proc/net/tcp6."""
    found = []
    for line in text.splitlines():
        cells = line.split()
        if len(cells) < 4 or cells[3] != _LISTEN:
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):([0-9A-Fa-f]{4})", cells[1])
        if match:
            found.append(Listener(_kernel_ip(match.group(1)), int(match.group(2), 16)))
    return tuple(found)


def _kernel_ip(digits: str) -> str:
    """Return the address in the kernel's hexadecimal form, with little-endian 32-bit words."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def parse_ahosts(text: str) -> tuple[str, ...]:
    """Return the addresses in `getent ahosts NAME`, in the resolver's order, without repeats."""
    words = [line.split()[0] for line in text.splitlines() if line.split()]
    return tuple(dict.fromkeys(word for word in words if is_ip(word)))


def parse_environment(text: str) -> dict[str, str]:
    """Return the variables in lines of the form `NAME=value`."""
    matches = (_ENVIRONMENT_LINE.match(line.strip()) for line in text.splitlines())
    return {m.group(1): m.group(2).strip("\"'") for m in matches if m}


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _objects(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
