"""Networks on random images of any size and number, timed in training and in inference."""
