"""A module a model, each as short as its network is simple."""
