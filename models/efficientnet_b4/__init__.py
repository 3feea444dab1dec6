"""EfficientNet-B4 (Tan and Le, 2019), torchvision's network and its Keras mirror."""
