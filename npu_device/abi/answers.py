"""What the command port answers a custom instruction."""

from pyv_state.named import NamedTuple


class PortReply(NamedTuple):
    """The instruction retires."""

    value: int
    """For rd; may be negative."""
    cycles: int = 0
    """Beyond the cycle after `now`: until then the core is not answered."""


class PortWait(NamedTuple):
    """Ask again after the next event, or at the start of cycle `until`. Nothing that others see was changed."""

    until: int | None = None


class PortTrap(NamedTuple):
    """The instruction traps."""

    cause: int
    value: int
