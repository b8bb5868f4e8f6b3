"""A small assembler: GNU's syntax, the instruction table of `pyv_ext.isa`, an ELF without the GNU tools.

`assemble` in `program` is the way in; docs/assembler.md says what is understood.
"""
