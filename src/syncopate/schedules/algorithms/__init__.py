"""Algorithms: one file for each family of collective algorithms."""
