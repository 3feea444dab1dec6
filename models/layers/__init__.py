"""What the vision models share: the sizes of layers, and the layers themselves where Keras mirrors PyTorch's."""
