"""Exception base class of this package. Faults of the guest are traps, never exceptions."""


class PyvExtError(Exception):
    """Misuse of the RISC-V side by its caller; the message contains value, rule and remedy."""
