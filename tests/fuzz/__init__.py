"""Readers of foreign files against thousands of damaged ones: one line each, in bounded memory and time."""
