"""Single ONNX nodes: the known properties of a node, and those that are graphs of other operators."""
