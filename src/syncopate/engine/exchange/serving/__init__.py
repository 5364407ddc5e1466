"""Serving: exchanges with parameter servers, synchronous and asynchronous."""
