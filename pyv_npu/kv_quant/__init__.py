"""Encoded keys and values: thresholds of decoders, measurements and ablations (docs/oaken.md)."""
