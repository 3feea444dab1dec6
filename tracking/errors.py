"""Errors of the tracking package, of the one family."""

from models.errors import ErrorCode, EvenhandError, UsageError, suggestion

__all__ = ["ErrorCode", "EvenhandError", "UsageError", "suggestion"]
