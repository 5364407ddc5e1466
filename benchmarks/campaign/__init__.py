"""Campaign: what ``benchmarks/collectives_lab.py`` measures, and how it is judged and reported."""
