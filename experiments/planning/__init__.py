"""Design of a campaign: pure functions of settings and a seed."""
