"""Benchmarks of this project, which no user imports: `scripts/bench NAME` runs them (docs/benchmarks.md)."""
