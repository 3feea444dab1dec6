"""Networks of images and of sequences on drawn inputs, trained for a number of steps."""
