"""Addresses of clients, as limits count them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def network(address: str) -> str:
    """Return what counts as one address: of IPv6 a /64, which a single customer is given."""
    try:
        found = ip_address(address)
    except ValueError:  # a socket has no address
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> 64 << 64)}/64"
