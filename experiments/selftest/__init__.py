"""Acceptance kit: known work on a device, measured as campaigns measure; needs no MLflow."""
