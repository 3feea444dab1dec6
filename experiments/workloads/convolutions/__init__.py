"""Networks trained as in training_speed, with batches of several sizes."""
