"""Adapter of the Py-V core (github.com/kyaso/py-v), which it extends from outside (docs/py-v.md).

Only this package imports `pyv`, and only `loader` and what it has loaded for: no Py-V file is copied or edited.
"""

ISA = "rv32im_zicsr_zifencei"
"""What the core executes, besides custom instructions."""
