"""Costs: what a collective takes on a cluster.

Prices of schedules (``price.py``), what their busiest links need (``congestion.py``), and the
papers' closed forms (``closed_forms.py``); lines, measured curves and envelopes (``pieces.py``,
``functions.py``, ``fits.py``); what planning uses for a cluster (``model.py``); and the physical
bound that no plan can beat (``bound.py``).
"""
