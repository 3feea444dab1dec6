"""Refusals: answers of the guard to requests that it does not let through."""

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
    """Answer instead of MLflow's.

    Attributes:
        status: HTTP status.
        retry_seconds: Time after which the same request may be sent again, 0 for never.
    """

    def __init__(self, status: int, message: str, retry_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_seconds = retry_seconds

    async def answer(self, send: Send) -> None:
        """Answer in MLflow's own form, so that its clients show the message.

        The connection ends: its body may be unread.
        """
        code = ERRORS.get(self.status, "TEMPORARILY_UNAVAILABLE")
        body = json.dumps({"error_code": code, "message": str(self)}).encode()
        headers = {"connection": "close", "cache-control": "no-store"}
        if self.status == 401:
            headers["www-authenticate"] = 'Basic realm="mlflow"'
        if self.retry_seconds:
            headers["retry-after"] = str(max(1, round(self.retry_seconds)))
        await respond(send, self.status, body, {"content-type": "application/json", **headers})


async def respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    """Send a whole answer."""
    headers = {**headers, "content-length": str(len(body))}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
