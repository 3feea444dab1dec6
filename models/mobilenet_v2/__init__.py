"""MobileNetV2 (Sandler et al., 2018), torchvision's network and its Keras mirror."""
