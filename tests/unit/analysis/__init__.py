"""Tests of ``syncopate.analysis``."""
