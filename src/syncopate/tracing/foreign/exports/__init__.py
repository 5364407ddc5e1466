"""Exports: a timeline as files of other tools, HolisticTraceAnalysis and Chakra."""
