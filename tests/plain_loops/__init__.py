"""Training and requests as the tutorials of the frameworks write them."""
