"""Checks of a descriptor that several operations share.

Each raises a `DescriptorError`, which names value and rule and ends in the ticket.
"""

from collections.abc import Collection, Mapping
from typing import Any

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.opcodes import DataType
from npu_device.memory.operands import TYPES


class DescriptorError(NpuDeviceError):
    """Error that ends in an error ticket with `code`; `reason` is for the error log. It never leaves the package."""

    def __init__(self, code: TicketError, detail: str) -> None:
        self.code = code
        self.reason = f"{code.text}: {detail}"
        super().__init__(self.reason)

    @classmethod
    def of(cls, code: TicketError, reason: str) -> "DescriptorError":
        """Return the error with this `reason`."""
        return DescriptorError(code, reason.removeprefix(f"{code.text}: "))


class CapacityError(DescriptorError):
    """Error of a tensor that does not fit: names it, the level of memory, the bytes over and a size that fits.

    Without a `remedy` the decoder looks for a legal tile (`legal_tile`) and raises it again with that.
    """

    def __init__(self, code: TicketError, tensor: str, level: str, need: int, available: int, remedy: str = "") -> None:
        self.over = need - available
        self.remedy = remedy
        self._arguments = (code, tensor, level, need, available)
        end = f"; {remedy}" if remedy else ""
        super().__init__(code, f"{tensor}: {need} bytes of {level}, there are {available}: {self.over} over{end}")

    def with_remedy(self, remedy: str) -> "CapacityError":
        """Return the same error with a size that fits."""
        return CapacityError(*self._arguments, remedy)


_TYPE = {int(kind): kind for kind in (*TYPES, DataType.VQ8, DataType.ENCODED)}


def element_type(d: Descriptor, name: str, allowed: Collection[DataType]) -> DataType:
    """Return the type in the part `name` of the quant word, one of `allowed`."""
    kind = _TYPE.get(getattr(d, name))
    if kind is None or kind not in allowed:
        names = ", ".join(choice.name for choice in allowed)
        raise DescriptorError(TicketError.DATA_TYPE, f"{name} {getattr(d, name)}: must be one of {names}")
    return kind


def unused_type(d: Descriptor, *names: str) -> None:
    for name in names:
        if getattr(d, name):
            raise DescriptorError(TicketError.DATA_TYPE, f"{name} {getattr(d, name)}: must be 0, it is not used")


Words = Descriptor | Extended | Mapping[str, Any]
"""Words by name: of a descriptor, those that operations share in a block, or an operation's own."""


def _value(words: Words, name: str) -> Any:
    return words[name] if isinstance(words, Mapping) else getattr(words, name)


def nonzero(words: Words, *names: str) -> None:
    """Check that dimensions are not 0."""
    for name in names:
        if not _value(words, name):
            raise DescriptorError(TicketError.SHAPE, f"{name} is 0: must be at least 1")


def unused_word(words: Words, *names: str) -> None:
    """Check that unused words are 0."""
    for name in names:
        if value := _value(words, name):
            raise DescriptorError(TicketError.RESERVED, f"{name} {value:#x}: must be 0, it is not used")
