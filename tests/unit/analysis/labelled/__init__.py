"""Trainings with a known loss: played by a machine of their own, written as tables, explained."""
