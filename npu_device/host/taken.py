"""A descriptor between its fetch and its acceptance."""

from typing import Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.issue.retirement import MODULUS
from npu_device.reservation.state import STREAMS
from npu_device.trace.events import TIGHT
from pyv_native.state import LATEST, WORD32, WORD64, StateError, data, inside, listed, row


class Taken(NamedTuple):
    """Descriptor on its way through the pipeline."""

    address: int
    slot: int
    """Index in the ring, or TIGHT."""
    began: int
    """Cycle at which its fetch began."""
    number: int
    """Acceptance number."""
    ticket: int = 0
    """ENQCMD_T: given on arrival. 0: the descriptor's own word decides."""
    data: bytes | None = None
    """ENQCMD_T: read by the core."""
    prio: int = 0
    stream: int = 0

    @classmethod
    def of(cls, state: Any) -> "Taken":
        """Restore it from the list of its fields. StateError."""
        with inside("argument"):
            address, slot, began, number, ticket, content, prio, stream = listed(state, len(cls._fields))
            row([address, slot, began, number], (0, WORD64), (0, WORD32), (0, LATEST), (1, LATEST))
            row([ticket, prio, stream], (0, MODULUS - 1), (0, 15), (0, STREAMS - 1))
            if bool(ticket) != (content is not None) or bool(ticket) != (slot == TIGHT):
                raise StateError("is neither of the ring nor of ENQCMD_T")
            read = None if content is None else data(content, DESCRIPTOR_SIZE)
            return cls(address, slot, began, number, ticket, read, prio, stream)
