"""Tests of ``syncopate.planning``."""
