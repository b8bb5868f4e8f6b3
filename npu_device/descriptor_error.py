"""Why a descriptor cannot become a command: travels from where it is found to the ticket."""

from npu_device.abi.errors import TICKET_ERROR_TEXT, NpuDeviceError, TicketError


class DescriptorError(NpuDeviceError):
    """Ends in an error ticket with `code`; `reason` is for the device's error log. Never leaves the package."""

    def __init__(self, code: TicketError, detail: str) -> None:
        self.code = code
        self.reason = f"{TICKET_ERROR_TEXT[code]}: {detail}"
        super().__init__(self.reason)
