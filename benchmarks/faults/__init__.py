"""Faults: trainings on emulated hosts with something wrong in them, and what explain says of it."""
