"""Single ONNX nodes: their known properties, and decompositions into graphs of other operators."""
