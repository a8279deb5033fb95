"""Clients' addresses, as the bounds for each address count them."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network


def counted(address: str) -> str:
    """Return the address, or the /64 of an IPv6 address: one client may have all of it."""
    if ":" not in address:
        return address
    host = IPv6Address(address)
    return str(host.ipv4_mapped or IPv6Network((int(host), 64), strict=False))
