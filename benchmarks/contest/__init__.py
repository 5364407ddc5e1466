"""Contest: ways of training one model, which take turns on the hosts of a lab."""
