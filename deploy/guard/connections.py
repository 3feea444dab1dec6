"""Bounds of connections: time until a request, and number from one address."""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
MAX_PER_ADDRESS = 512


def network(address: str) -> str:
    """Return the address that limits count: of IPv6 the /64, which a single customer gets."""
    try:
        parsed = ip_address(address)
    except ValueError:  # a socket has no address
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose next request is complete ten seconds after the connection or its first byte.

    One address has a bounded number of connections.
    """

    _connections: ClassVar[Counter[str]] = Counter()
    _timer: asyncio.TimerHandle | None = None
    _network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = network(self.client[0]) if self.client else ""
        self._connections[self._network] += 1
        if self._connections[self._network] > MAX_PER_ADDRESS:
            transport.abort()
        else:
            self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connections[self._network] -= 1
        if not self._connections[self._network]:
            del self._connections[self._network]
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
