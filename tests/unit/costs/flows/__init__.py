"""Tests of ``syncopate.costs.flows``."""
