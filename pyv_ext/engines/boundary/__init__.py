"""What Python and native code of one hart share: a frame of words, calls of Python, and how they go on after one."""
