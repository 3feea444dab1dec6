"""The tool's own error rates."""
