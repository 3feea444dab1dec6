"""Training loops of others, over the same network: the baseline of the cost of measuring."""
