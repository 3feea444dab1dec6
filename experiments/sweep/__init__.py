"""The search over an experiment's settings: Optuna samples and prunes, fresh processes answer, a campaign judges the best."""
