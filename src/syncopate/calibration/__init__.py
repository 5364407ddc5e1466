"""Calibration: measures the cluster and the model that planning then works with."""
