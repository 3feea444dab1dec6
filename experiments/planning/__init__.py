"""Which cells there are, and in which order: pure functions of settings and a seed."""
