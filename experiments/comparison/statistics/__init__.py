"""Estimates, tests, steady state, survival, ranking: functions of numbers."""
