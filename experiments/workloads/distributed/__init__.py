"""Networks of images, trained by several processes that average their gradients after every step."""
