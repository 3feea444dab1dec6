"""Connections that say nothing are ended, and one address has so many of them and no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from deploy.guard.addresses import network

REQUEST_SECONDS = 10.0
OF_ONE_ADDRESS = 512


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 whose next request has to be there within ten seconds from the first byte, or from the connection on."""

    _of_address: ClassVar[Counter[str]] = Counter()
    _waits: asyncio.TimerHandle | None = None
    _counted = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = network(self.client[0]) if self.client else ""
        self._counted = address
        self._of_address[address] += 1
        if self._of_address[address] > OF_ONE_ADDRESS:
            transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._of_address[self._counted] -= 1
        if not self._of_address[self._counted]:
            del self._of_address[self._counted]
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waits is None:
            self._waits = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None
