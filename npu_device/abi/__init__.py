"""Interface between firmware and NPU, declared once (docs/interface.md).

The C header, the pages in docs/ and the debugger's view are generated from these tables. Importing a table checks it.
"""

ABI_VERSION = 1
DESCRIPTOR_SIZE = 64
EXTENDED_SIZE = 128
"""Bytes of the descriptor and of its extended block in memory (`descriptor`, `extended`)."""
