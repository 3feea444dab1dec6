"""Each framework's own input pipeline over the same files: worker processes, threads, prefetching, as its documentation says."""
