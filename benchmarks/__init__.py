"""Benchmarks: each prints its table, and the bar that it is held to. Run one with `python -m benchmarks.NAME`."""
