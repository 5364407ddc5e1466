"""Syncopate: measure, plan, run and predict gradient communication in data-parallel training."""
