"""What stands between the network and MLflow: who is asking, which routes there are, how much is read, what is named."""
