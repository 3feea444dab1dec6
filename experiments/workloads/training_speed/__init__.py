"""Networks of images or of sequences on random inputs, trained for so many steps."""
