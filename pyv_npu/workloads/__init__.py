"""Workloads: firmware, models, decoders and command lists, run at a level."""
