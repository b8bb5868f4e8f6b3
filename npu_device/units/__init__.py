"""Timing of engines, DMA channels, banks and DRAM in the native subset: which step starts and ends in which cycle."""
