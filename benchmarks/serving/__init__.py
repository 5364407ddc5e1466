"""Serving: times a parameter server, and kills it."""
