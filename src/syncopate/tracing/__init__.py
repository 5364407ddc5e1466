"""Tracing: from what ranks recorded to one timeline, and from a timeline to other tools' files."""
