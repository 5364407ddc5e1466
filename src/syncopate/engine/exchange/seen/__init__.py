"""Seen: what a script finds at a parameter while the whole of it is elsewhere or on its way."""
