"""Why a descriptor cannot become a command: travels from where it is found to the ticket."""

from npu_device.abi.errors import TICKET_ERROR_TEXT, NpuDeviceError, TicketError


class DescriptorError(NpuDeviceError):
    """Ends in an error ticket with `code`; `reason` is for the device's error log. Never leaves the package."""

    def __init__(self, code: TicketError, detail: str) -> None:
        self.code = code
        self.reason = f"{TICKET_ERROR_TEXT[code]}: {detail}"
        super().__init__(self.reason)


class NoRoomError(DescriptorError):
    """Something is larger than its place: names the tensor, the level of memory, the bytes over and what would fit.

    Without a `remedy` the decoder looks for the nearest legal tile (`nearest`) and raises it again with that.
    """

    def __init__(self, code: TicketError, tensor: str, level: str, need: int, room: int, remedy: str = "") -> None:
        self.over = need - room
        self.remedy = remedy
        self._found = (code, tensor, level, need, room)
        end = f"; {remedy}" if remedy else ""
        super().__init__(code, f"{tensor}: {need} bytes of {level}, there are {room}: {self.over} over{end}")

    def with_remedy(self, remedy: str) -> "NoRoomError":
        """The same with what would fit."""
        return NoRoomError(*self._found, remedy)
