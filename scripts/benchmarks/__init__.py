"""Benchmarks of this project, run by `scripts/bench NAME` (docs/benchmarks.md). Not part of the package."""
