"""The macro form: a module per operation with its operands, its values and its steps."""
