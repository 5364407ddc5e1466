"""Results: files of what was found out: benchmarks, decisions, answers to what-if."""
