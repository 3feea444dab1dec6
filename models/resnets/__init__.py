"""What ResNet-18, ResNet-50 and ResNet-152 (He et al., 2016) share: torchvision's networks and their Keras mirror."""
