"""Estimates, tests, power, sequential looks: functions of numbers."""
