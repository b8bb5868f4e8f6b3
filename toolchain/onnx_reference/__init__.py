"""Single ONNX nodes: what is known of one, and those that are graphs of other operators."""
