"""Server in containers."""
