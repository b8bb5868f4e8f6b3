"""The native subset: Python over typed records of a buffer, run by CPython or compiled (docs/native-subset.md)."""

import time

IMPORT_TIME = time.time()
"""Host time in seconds before the process imports the sources from which native code is generated."""
