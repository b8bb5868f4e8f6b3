"""Encoded keys and values in the product: thresholds of decoders, what was measured (docs/oaken.md)."""
