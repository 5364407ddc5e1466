"""Mesh: the package's own links between ranks, and what runs schedules over them."""
