"""Persistent profiles of translated programs, and keys of the code cache."""
