"""Wording, tables and figures of a comparison."""
