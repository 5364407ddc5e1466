"""Timelines: what one is made of: spans, ranks that do the same, gradients, messages."""
