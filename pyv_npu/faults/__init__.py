"""Faults that are injected into a run on purpose (docs/reliability.md)."""
