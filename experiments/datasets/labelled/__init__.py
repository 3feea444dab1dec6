"""Images with one class each: digits (embedded), MNIST, CIFAR-10, and folders of pictures."""
