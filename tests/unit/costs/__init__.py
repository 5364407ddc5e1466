"""Tests of ``syncopate.costs``."""
