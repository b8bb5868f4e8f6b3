"""Descriptors as they arrive: equal ones are unpacked and checked once."""

from typing import Any

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, Descriptor
from npu_device.command import Order
from npu_device.completion import STATUS_OFFSET

REMEMBERED = 1024
"""Descriptors; the next one makes room for as many others."""
_NO_STATUS = bytes(DESCRIPTOR_SIZE - STATUS_OFFSET)


class Request:
    """A descriptor, and what it asks for once that is known."""

    __slots__ = ("descriptor", "order")

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.order: Order | None = None


class Requests:
    """Requests by the bytes of their descriptors, which differ in status and ticket only.

    What is remembered here is no state of the device: snapshots leave it out.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Request] = {}

    def of(self, data: bytes) -> Request:
        """The request of 64 bytes; its descriptor has neither status nor ticket."""
        key = data[:STATUS_OFFSET]
        request = self._known.get(key)
        if request is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            request = self._known[key] = Request(Descriptor.unpack(key + _NO_STATUS))
        return request

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        self._known.clear()
