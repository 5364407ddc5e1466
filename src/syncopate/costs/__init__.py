"""Costs: what a collective costs: prices of schedules, closed forms, fits and measured curves."""
