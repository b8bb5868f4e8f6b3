"""The one exception base of this package. A guest's faults are traps, never exceptions."""


class PyvExtError(Exception):
    """Misuse of the RISC-V side by its caller; the message says value, rule and remedy."""
