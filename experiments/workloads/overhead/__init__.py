"""One network on one batch, by this harness, by the framework's own plain loop, and by the usual trackers."""
