"""Benchmarks: infhess and the alternatives in one run, as rows and ratios."""
