"""Schedules: collective algorithms as data, a symbolic checker, and the registry of them all."""
