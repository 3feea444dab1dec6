"""Calibrated work on a device in each library, for the acceptance kit."""
