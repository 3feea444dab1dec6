"""VGG-16 for images of 32 × 32 with BatchNorm and Dropout (Liu and Deng, 2015)."""
