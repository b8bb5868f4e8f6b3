"""Assembler with GNU syntax: it uses the instruction table of `pyv_ext.isa` and writes an ELF file without GNU tools.

The entry point is `program.assemble`; docs/assembler.md lists the supported syntax.
"""
