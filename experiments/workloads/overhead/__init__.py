"""One network on one batch, by this harness and by the framework's own plain loop."""
