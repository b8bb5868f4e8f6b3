"""Quantization of keys and values: codecs, thresholds, and the layout of the encoded bytes (docs/oaken.md)."""
