"""Adapter of the Py-V core (github.com/kyaso/py-v), which it extends from outside (docs/py-v.md).

Only this package imports `pyv`, and only after `loader` has loaded it. No Py-V file is copied or edited.
"""

ISA = "rv32im_zicsr_zifencei"
"""ISA of the core without custom instructions."""
