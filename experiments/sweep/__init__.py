"""Search of an experiment's settings with Optuna; a campaign judges the best."""
