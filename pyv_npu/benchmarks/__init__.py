"""Workloads of published simulators, run on the NPU model without a core (specification 45)."""
