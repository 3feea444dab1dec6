"""One file a data set or format; NumPy batches, the same bytes for every framework, in a recorded order."""
