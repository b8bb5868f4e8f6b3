"""Sweeps: a program at every point of some axes (docs/studies.md)."""
