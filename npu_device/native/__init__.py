"""The native subset: a small Python, with records, that runs as it stands and as native code."""
