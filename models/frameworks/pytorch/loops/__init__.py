"""Training loops that are not ours, over the same network and batches: what the cost of measuring is measured against."""
