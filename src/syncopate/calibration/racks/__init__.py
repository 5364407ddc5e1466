"""Racks: finds groups of hosts behind shared uplinks."""
