"""VGG-16 (Simonyan and Zisserman, 2015), torchvision's network and its Keras mirror."""
