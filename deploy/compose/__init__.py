"""The server in containers."""
