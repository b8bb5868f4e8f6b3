"""The commands of `pyv-npu`: a module per verb."""
