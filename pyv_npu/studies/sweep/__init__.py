"""Sweeps: runs of a program at every point of some axes (docs/studies.md)."""
