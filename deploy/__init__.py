"""Shared tracking server of a group."""
