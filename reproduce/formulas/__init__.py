"""Formulas: what the papers print, as functions, for the scripts and tests that hold us to it."""
