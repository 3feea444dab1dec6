"""The toy framework's plain loop."""
