"""Decoder language models: built-in shapes, their commands, and ONNX decoders with a key/value cache."""
