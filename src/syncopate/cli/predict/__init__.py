"""Predict: commands that say what a training would take, and how sure that is."""
