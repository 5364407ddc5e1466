"""Tests of ``syncopate.simulation``."""
