"""Calibration: the comparison's own error rates, by simulation."""
