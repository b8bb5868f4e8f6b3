"""LLVM for the core and for the NPU: text of functions becomes native code, which is kept from process to process."""

import time

IMPORT_TIME = time.time()
"""The time before a process imports the sources from which native code is generated."""
