"""Policies: ways to cut gradients into buckets, one file each."""
