"""Sizes and layers that ResNet-18, ResNet-50 and ResNet-152 share (He et al., 2016)."""
