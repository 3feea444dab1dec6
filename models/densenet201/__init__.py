"""DenseNet-201 (Huang et al., 2017), torchvision's network and its Keras mirror."""
