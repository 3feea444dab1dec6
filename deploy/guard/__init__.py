"""Guard between the network and MLflow: accounts, routes, sizes, contents and searches."""
