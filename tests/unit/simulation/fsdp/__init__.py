"""Iterations whose weights lie in shards."""
