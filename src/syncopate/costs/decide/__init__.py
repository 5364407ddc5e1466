"""Decide: which algorithm with which options carries a collective."""
