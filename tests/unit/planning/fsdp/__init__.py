"""Plans of units, whose weights lie in shards."""
