"""Quantization of keys and values: codecs, thresholds, and where the encoded bytes lie (docs/oaken.md)."""
