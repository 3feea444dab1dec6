"""Finished runs as a table, paired inside blocks, with their environment and raw values."""
