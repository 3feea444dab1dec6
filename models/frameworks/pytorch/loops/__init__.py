"""Loops that are not ours, over the same network: what the cost of measuring is measured against."""
