"""Commands beside the experiments."""
