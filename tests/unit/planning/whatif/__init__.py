"""Tests of sweeps, one file for each of their modules."""
