"""What is kept: records, journal, MLflow store, sensors, provenance."""
