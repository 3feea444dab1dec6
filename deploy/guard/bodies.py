"""How much of a request is read, and how long one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from deploy.guard.refusal import Message, Receive, Refusal, Send

LARGEST_JSON_BYTES, LARGEST_SEARCH_BYTES, LARGEST_QUERY_BYTES = 4 * 2**20, 256 * 2**10, 16 * 2**10
JSON_SECONDS = 30.0
CHUNK_SECONDS = 60.0
DISCARDED_BYTES, DISCARD_SECONDS = 16 * 2**20, 5.0
DESCRIBING = {b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"}


class Disconnected(Exception):
    """The client has gone; nobody waits for an answer."""


def announced_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the size that a request's headers tell, None for one that comes in chunks.

    HTTP's own parser has judged each of them. Raises Refusal for both: a proxy may have believed the
    other one.
    """
    known = {name.lower(): text for name, text in headers}
    if b"transfer-encoding" not in known:
        return int(known.get(b"content-length", 0))
    if b"content-length" in known:
        raise Refusal(
            400, "a body has a Content-Length or comes in chunks; send one of the two headers"
        )
    return None


def described(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request whose body is replaced by plain JSON, or by none."""
    others = [(name, text) for name, text in headers if name.lower() not in DESCRIBING]
    kind = [(b"content-type", b"application/json")] if body else []
    return [*others, *kind, (b"content-length", str(len(body)).encode())]


async def read(receive: Receive, largest_bytes: int) -> bytes:
    """A whole body. Raises Refusal where it is larger, or slower than a person's network."""
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(JSON_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > largest_bytes:
                    raise too_large(largest_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {JSON_SECONDS:.0f} s") from None


def again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read to the application behind, then whatever comes after it."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


class Incoming:
    """What a client sends, and whether it has sent all of it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_complete = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.is_complete = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Whoever is still sending would see a broken connection instead of the answer."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.is_complete and size < DISCARDED_BYTES:
                    size += len((await self()).get("body", b""))


class Bounded:
    """A body that goes through in pieces, up to a size. What is too much or too slow looks like a lost client from behind."""

    def __init__(self, receive: Receive, largest_bytes: int) -> None:
        self._receive = receive
        self._largest_bytes = largest_bytes
        self._bytes = 0
        self.refusal: Refusal | None = None

    async def __call__(self) -> Message:
        if self.refusal:
            return {"type": "http.disconnect"}
        try:
            async with asyncio.timeout(CHUNK_SECONDS):
                message = await self._receive()
        except TimeoutError:
            self.refusal = Refusal(408, f"nothing came for {CHUNK_SECONDS:.0f} s")
            return {"type": "http.disconnect"}
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._largest_bytes:
            self.refusal = too_large(self._largest_bytes)
            return {"type": "http.disconnect"}
        return message

    def answers(self, send: Send) -> Send:
        """What the application behind says of a body that was refused is not its own to say."""

        async def unless_refused(message: Message) -> None:
            if not self.refusal:
                await send(message)

        return unless_refused


def too_large(largest_bytes: int) -> Refusal:
    size = (
        f"{largest_bytes / 2**20:,.0f} MiB"
        if largest_bytes >= 2**20
        else f"{largest_bytes / 2**10:,.0f} KiB"
    )
    return Refusal(413, f"the body is larger than {size}")
