"""How fast the core executes firmware, next to QEMU and Spike (docs/benchmarks.md); see `processes`."""
