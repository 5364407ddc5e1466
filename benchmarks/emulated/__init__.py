"""Emulated: benchmarks that run themselves on every host of a lab."""
