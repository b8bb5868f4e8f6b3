"""Checks that the operands of many operations share. Each ends in a DescriptorError that names value and rule."""

from collections.abc import Collection

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.abi.opcodes import DataType
from npu_device.descriptor_error import DescriptorError
from npu_device.operands import TYPES

_TYPE = {int(kind): kind for kind in TYPES}


def element_type(d: Descriptor, name: str, allowed: Collection[DataType]) -> DataType:
    """The type in the part `name` of the quant word, one of `allowed`."""
    kind = _TYPE.get(getattr(d, name))
    if kind is None or kind not in allowed:
        names = ", ".join(one.name for one in allowed)
        raise DescriptorError(TicketError.DATA_TYPE, f"{name} {getattr(d, name)}: must be one of {names}")
    return kind


def unused_type(d: Descriptor, *names: str) -> None:
    for name in names:
        if getattr(d, name):
            raise DescriptorError(TicketError.DATA_TYPE, f"{name} {getattr(d, name)}: must be 0, it is not used")


def nonzero(d: object, *names: str) -> None:
    """Dimensions of a descriptor or block."""
    for name in names:
        if not getattr(d, name):
            raise DescriptorError(TicketError.SHAPE, f"{name} is 0")


def unused_word(d: object, *names: str) -> None:
    """Words of a descriptor or block."""
    for name in names:
        if getattr(d, name):
            raise DescriptorError(TicketError.RESERVED, f"{name} {getattr(d, name):#x}: must be 0, it is not used")
