"""Workloads of published simulators, run on the NPU model without a core (docs/benchmarks.md, "Other simulators")."""
