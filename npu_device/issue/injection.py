"""The points of the device at which faults act (docs/reliability.md). Without an injector there is none of this."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_device.decode.command import Command


class Injector:
    """Hooks of fault injection. This class changes nothing: faults override the hooks of their changes.

    Cycles are those from whose start the change holds.
    """

    @property
    def drives_line(self) -> bool:
        """Whether `line` may change the interrupt line: then native code of the core does not call the device."""
        return False

    def line(self, level: bool) -> bool:
        """Return the interrupt line as the core sees it, where the device drives `level`."""
        return level

    def doorbell(self, cycle: int, tail: int) -> bool:
        """Check whether a doorbell arrives at the ring."""
        return True

    def submission(self, cycle: int, address: int) -> bool:
        """Check whether an ENQCMD_T arrives at the command port; else it returns "queue full" to the core."""
        return True

    def head(self, head: int, size: int) -> int:
        """QUEUE_HEAD as a read shows it."""
        return head

    def descriptor(self, cycle: int, content: bytes) -> bytes:
        """Return the 64 bytes that the decoder gets."""
        return content

    def accepted(self, cycle: int, command: "Command", depth: int) -> None:
        """Handle an accepted command; `depth` commands wait, this one included."""

    def sampled(self, cycle: int, command: "Command") -> None:
        """Handle a command about to start on a unit, with its result computed: it may be changed, or fail."""

    def takes(self, cycle: int, command: "Command") -> bool:
        """Check whether the unit of a command that starts is stuck: the injector resumes the command, or never does."""
        return False

    def writes_status(self, cycle: int, ticket: int) -> bool:
        """Check whether a requested status word is written."""
        return True
