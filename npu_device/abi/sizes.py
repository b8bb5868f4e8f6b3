"""Bytes of what a submission has in memory, for those that ask no more of its tables (`descriptor`, `extended`)."""

DESCRIPTOR_SIZE = 64
EXTENDED_SIZE = 128
