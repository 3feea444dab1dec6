"""Networks of images and of sequences, drawn or from files, trained for a number of steps."""
