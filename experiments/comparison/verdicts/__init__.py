"""Decisions on findings, each with a reason."""
