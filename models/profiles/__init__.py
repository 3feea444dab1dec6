"""Where the time of a step goes, by each framework's own profiler; its trace is left for TensorBoard."""
