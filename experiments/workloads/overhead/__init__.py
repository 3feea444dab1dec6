"""Cost of this harness: one network on one batch, also by the framework's own plain loop."""
