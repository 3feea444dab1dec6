"""Refusals: answers of the guard to requests that it does not let through."""

from __future__ import annotations

from enum import StrEnum

from starlette.responses import JSONResponse


class Reason(StrEnum):
    """Reason of a refusal, sent with its message."""

    INVALID = "invalid"
    AMBIGUOUS = "ambiguous"  # a thing is named twice and differs
    TOO_MANY = "too_many"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    NO_LOGIN = "no_login"
    DENIED = "denied"
    UNKNOWN_USER = "unknown_user"  # the proxy's log-in was right, and nobody made an account
    NOT_OFFERED = "not_offered"
    NOT_FOUND = "not_found"
    WAIT = "wait"
    BUSY = "busy"


# HTTP status, and MLflow's error code: its clients try again after codes that they do not know.
ANSWERS = {
    Reason.INVALID: (400, "INVALID_PARAMETER_VALUE"),
    Reason.AMBIGUOUS: (400, "INVALID_PARAMETER_VALUE"),
    Reason.TOO_MANY: (400, "INVALID_PARAMETER_VALUE"),
    Reason.TOO_LARGE: (413, "INVALID_PARAMETER_VALUE"),
    Reason.TOO_SLOW: (408, "TEMPORARILY_UNAVAILABLE"),
    Reason.NO_LOGIN: (401, "UNAUTHENTICATED"),
    Reason.DENIED: (403, "PERMISSION_DENIED"),
    Reason.UNKNOWN_USER: (403, "PERMISSION_DENIED"),
    Reason.NOT_OFFERED: (403, "PERMISSION_DENIED"),
    Reason.NOT_FOUND: (404, "RESOURCE_DOES_NOT_EXIST"),
    Reason.WAIT: (429, "REQUEST_LIMIT_EXCEEDED"),
    Reason.BUSY: (503, "TEMPORARILY_UNAVAILABLE"),
}


class Refusal(Exception):
    """Answer instead of MLflow's.

    Attributes:
        reason: Code of the refusal.
        status: HTTP status.
        retry_seconds: Time after which the same request may be sent again, 0 for never.
    """

    def __init__(self, reason: Reason, message: str, retry_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.status, self._error_code = ANSWERS[reason]
        self.retry_seconds = retry_seconds

    def response(self) -> JSONResponse:
        """Return the answer in MLflow's own form, so that its clients show the message.

        The connection ends: its body may be unread.
        """
        headers = {"connection": "close", "cache-control": "no-store"}
        if self.status == 401:
            headers["www-authenticate"] = 'Basic realm="mlflow"'
        if self.retry_seconds:
            headers["retry-after"] = str(max(1, round(self.retry_seconds)))
        content = {"error_code": self._error_code, "reason": self.reason, "message": str(self)}
        return JSONResponse(content, self.status, headers)
