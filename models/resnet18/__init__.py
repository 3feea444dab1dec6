"""ResNet-18 (He et al., 2016), torchvision's network and its Keras mirror."""
