"""Networks of images, trained by processes that average their gradients after every step."""
