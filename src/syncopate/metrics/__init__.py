"""Metrics: figures of a process that runs, for other programs to fetch: Prometheus and its like."""
