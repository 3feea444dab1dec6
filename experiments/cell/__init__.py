"""The child: one cell in one process with one framework."""
