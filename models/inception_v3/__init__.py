"""Inception-V3 (Szegedy et al., 2016) without its auxiliary head."""
