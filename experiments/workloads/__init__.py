"""What a cell does: one folder a kind of work, named by the studies that use it."""
