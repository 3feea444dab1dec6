"""Layers and sizes that several networks share."""

NEVER = -1e30  # a score in attention whose probability is zero in every precision
