"""Bounds of a request's body: its size, and the time until it is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from deploy.guard.refusal import Reason, Refusal

LARGEST_JSON_BYTES, LARGEST_SEARCH_BYTES, LARGEST_QUERY_BYTES = 4 * 2**20, 256 * 2**10, 16 * 2**10
JSON_SECONDS = 30.0
CHUNK_SECONDS = 60.0
DISCARDED_BYTES, DISCARD_SECONDS = 16 * 2**20, 5.0
BODY_HEADERS = {b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"}
DISCONNECT = {"type": "http.disconnect"}


def announced_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the size that a request's headers state, None for one that comes in chunks.

    HTTP's own parser has checked each of them.

    Raises:
        Refusal: Both are there: a proxy may have believed the other one.
    """
    values = {name.lower(): text for name, text in headers}
    if b"transfer-encoding" not in values:
        return int(values.get(b"content-length", 0))
    if b"content-length" in values:
        raise Refusal(
            Reason.INVALID,
            "a body has a Content-Length or comes in chunks; send one of the two headers",
        )
    return None


def replace_body_headers(
    headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request whose body is replaced by plain JSON, or by none."""
    rest = [(name, text) for name, text in headers if name.lower() not in BODY_HEADERS]
    kind = [(b"content-type", b"application/json")] if body else []
    return [*rest, *kind, (b"content-length", str(len(body)).encode())]


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read, then the connection's messages."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message


class Body:
    """Body that a client sends, within bounds.

    One that is too large or too slow ends like a lost connection.

    Attributes:
        largest_bytes: Its bound.
        refusal: Reason for its end.
    """

    def __init__(self, receive: Receive, largest_bytes: int) -> None:
        self._receive, self._bytes, self._is_complete = receive, 0, False
        self.largest_bytes = largest_bytes
        self.refusal: Refusal | None = None

    async def receive(self) -> Message:
        if self.refusal:
            return DISCONNECT
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(CHUNK_SECONDS):
                message = await self._receive()
        except TimeoutError:
            self.refusal = Refusal(Reason.TOO_SLOW, f"nothing came for {CHUNK_SECONDS:.0f} s")
            return DISCONNECT
        self._is_complete = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > self.largest_bytes:
            self.refusal = too_large(self.largest_bytes)
            return DISCONNECT
        return message

    async def read(self, largest_bytes: int) -> bytes:
        """Return the whole body. Raises Refusal for one that is too large or too slow."""
        self.largest_bytes = largest_bytes
        try:
            async with asyncio.timeout(JSON_SECONDS):
                return await Request({"type": "http"}, self.receive).body()
        except TimeoutError:
            raise Refusal(
                Reason.TOO_SLOW, f"the body did not come within {JSON_SECONDS:.0f} s"
            ) from None
        except ClientDisconnect:
            raise self.refusal or ClientDisconnect from None

    async def discard(self) -> None:
        """Read the rest: a client that is still sending sees a broken connection otherwise."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._is_complete and size < DISCARDED_BYTES:
                    message = await self._receive()
                    self._is_complete = not message.get("more_body", False)
                    size += len(message.get("body", b""))


def too_large(largest_bytes: int) -> Refusal:
    text = f"the body is larger than {largest_bytes / 2**10:,.0f} KiB"
    return Refusal(Reason.TOO_LARGE, text)
