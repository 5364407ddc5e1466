"""Served: what the nodes of a parameter server sent and received, as they captured it."""
