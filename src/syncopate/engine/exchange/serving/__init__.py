"""Serving: the parts of exchanges with parameter servers: synchronous, asynchronous, delayed."""
