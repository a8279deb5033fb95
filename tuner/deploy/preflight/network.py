"""Read `ip -j addr`, `ip -j route`, /proc/net/tcp and `getent ahosts`.

Malformed values are ignored.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from tuner.deploy.preflight.facts import Address, Interface, Listener

_LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h
_ENVIRONMENT_LINE = re.compile(r"^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")


def parse_ip_addr(text: str) -> tuple[Interface, ...]:
    """The interfaces and their addresses in the output of `ip -j addr`."""
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
        found.append(Interface(name, up, tuple(_addresses(entry.get("addr_info")))))
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
    """The interface of the default route in `ip -j route`, or an empty string."""
    best: tuple[int, str] | None = None
    for entry in _objects(text):
        metric = entry.get("metric", 0)
        device = entry.get("dev")
        if entry.get("dst") == "default" and isinstance(device, str) and type(metric) is int:
            best = min(best or (metric, device), (metric, device))
    return best[1] if best else ""


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """The listening TCP sockets in /proc/net/tcp or /proc/net/tcp6."""
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
    """The address in the kernel's hexadecimal form, with little-endian 32-bit words."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def parse_ahosts(text: str) -> tuple[str, ...]:
    """The addresses in `getent ahosts NAME`, in the resolver's order, without repeats."""
    words = [line.split()[0] for line in text.splitlines() if line.split()]
    return tuple(dict.fromkeys(word for word in words if is_ip(word)))


def parse_environment(text: str) -> dict[str, str]:
    """The variables in lines of the form `NAME=value`."""
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
