"""The token position that a command reads when it starts."""

from npu_device.abi.errors import TicketError
from npu_device.descriptor_error import DescriptorError
from npu_device.effect import Read
from npu_device.macro.base import Operand
from npu_device.region import Region

POSITION_BYTES = 4


def position_operand(address: int) -> tuple[Operand, ...]:
    """The operand for `pos_addr`; none for 0."""
    if not address:
        return ()
    return (Operand("pos_addr", Region(address, 1, POSITION_BYTES, POSITION_BYTES), POSITION_BYTES),)


def read_position(read: Read, address: int, rows: int, t_max: int) -> int:
    """The position t of the first of `rows` tokens. DescriptorError when the last is not below t_max."""
    data = read(Region(address, 1, POSITION_BYTES, POSITION_BYTES))
    position = int.from_bytes(data.tobytes(), "little")
    if position + rows > t_max:
        raise DescriptorError(
            TicketError.POSITION, f"tokens {position}..{position + rows - 1} at {address:#x}, t_max is {t_max}"
        )
    return position
