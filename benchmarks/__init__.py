"""Owns the benchmarks: what is measured, beside whom, and how it is told (`benchmarks/run`)."""
