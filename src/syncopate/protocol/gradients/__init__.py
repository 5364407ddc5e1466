"""Gradients: in fewer bits on the wire (``narrow``), clipped by a step's norm (``clipping``)."""
