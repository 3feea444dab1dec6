"""ResNet-50 in PyTorch: torchvision's."""

from models.resnet18.pytorch import build as build
