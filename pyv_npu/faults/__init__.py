"""Fault injection (docs/reliability.md)."""
