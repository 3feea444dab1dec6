"""Errors of the tracking package, of the one family."""

from models.errors import ErrorCode, EvenhandError, UsageError, choices

__all__ = ["ErrorCode", "EvenhandError", "UsageError", "choices"]
