"""Artefacts: what Syncopate measures, plans and records, each a strict JSON file."""
