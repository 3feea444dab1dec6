"""Records, journal, MLflow store, sensors and provenance of runs."""
