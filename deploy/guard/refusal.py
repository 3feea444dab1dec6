"""Refusals: the answers of the guard to what it does not let through."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]

ERRORS = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    413: "INVALID_PARAMETER_VALUE",  # its clients try again after anything else
    429: "REQUEST_LIMIT_EXCEEDED",
}


class Refusal(Exception):
    """An answer instead of MLflow's. again_seconds: when the same request may be sent once more, 0 for never."""

    def __init__(self, status: int, message: str, again_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.again_seconds = again_seconds

    async def answer(self, send: Send) -> None:
        """In MLflow's own form, so that its clients show the message. The connection ends: its body may be unread."""
        body = json.dumps(
            {"error_code": ERRORS.get(self.status, "TEMPORARILY_UNAVAILABLE"), "message": str(self)}
        ).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        headers += [(b"connection", b"close"), (b"cache-control", b"no-store")]
        if self.status == 401:
            headers.append((b"www-authenticate", b'Basic realm="mlflow"'))
        if self.again_seconds:
            headers.append((b"retry-after", str(max(1, round(self.again_seconds))).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
