"""The interface between firmware and NPU, declared once (docs/interface.md).

The C header, the pages in docs/ and the debugger's view are generated from these tables; importing one checks it.
"""

ABI_VERSION = 1
DESCRIPTOR_SIZE = 64
EXTENDED_SIZE = 128
"""Bytes of what a submission has in memory (`descriptor`, `extended`)."""
