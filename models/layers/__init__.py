"""What the vision models share: the sizes of layers, and the layers themselves where Keras mirrors PyTorch's."""

NEVER = -1e30  # a score in attention whose probability is zero in every precision
