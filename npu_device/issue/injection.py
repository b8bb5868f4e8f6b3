"""Hooks of the device for fault injection (docs/reliability.md). A device without an injector calls none of them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_device.decode.command import Command


class Injector:
    """Hooks of fault injection. The base class changes nothing; faults override hooks.

    A change takes effect at the start of its cycle.
    """

    @property
    def drives_line(self) -> bool:
        """Whether `line` may change the interrupt line. If so, native code of the core does not call the device."""
        return False

    def line(self, level: bool) -> bool:
        """Return the interrupt line as the core sees it while the device drives `level`."""
        return level

    def doorbell(self, cycle: int, tail: int) -> bool:
        """Check whether a doorbell arrives at the ring."""
        return True

    def submission(self, cycle: int, address: int) -> bool:
        """Check whether an ENQCMD_T arrives at the command port; otherwise the core gets "queue full"."""
        return True

    def head(self, head: int, size: int) -> int:
        """Return QUEUE_HEAD as a read shows it."""
        return head

    def descriptor(self, cycle: int, content: bytes) -> bytes:
        """Return the 64 bytes that the decoder receives."""
        return content

    def accepted(self, cycle: int, command: "Command", depth: int) -> None:
        """Handle an accepted command. `depth`: number of waiting commands, including it."""

    def sampled(self, cycle: int, command: "Command") -> None:
        """Handle a command about to start on a unit. Its computed result may be changed, or the command failed."""

    def takes(self, cycle: int, command: "Command") -> bool:
        """Check whether the unit of a starting command is stuck. Only the injector can resume the command."""
        return False

    def writes_status(self, cycle: int, ticket: int) -> bool:
        """Check whether a requested status word is written."""
        return True
