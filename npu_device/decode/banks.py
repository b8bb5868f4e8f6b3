"""Banks of scratchpads by the masks of descriptors."""

from npu_device.abi.errors import TicketError
from npu_device.config import SpmConfig
from npu_device.operations.checks import CapacityError, DescriptorError

_MASK_BITS = 8
BANK_MASKS = 1 << _MASK_BITS
_INTERLEAVED = 64
"""Bytes of a bank before the next one with `spm.interleave` 64B."""


class Banks:
    """Banks of the masks of a device."""

    def __init__(self, spm: SpmConfig) -> None:
        self.count = spm.banks
        self.unit = spm.size // spm.banks if spm.interleave == "block" else _INTERLEAVED
        """Consecutive bytes of a bank."""
        self.by_mask = [_banks_of_mask(mask, spm.banks) for mask in range(BANK_MASKS)]
        """Banks of each mask: bit b for bank b."""

    def mask_error(self, mask: int) -> DescriptorError:
        """Return the error of a mask that names no bank."""
        useful = sum(1 << bit for bit in range(_MASK_BITS) if self.by_mask[1 << bit])
        return DescriptorError(
            TicketError.BANK_MASK, f"mask {mask:#04x} of spm.banks {self.count}: bits that do are {useful:#04x}"
        )

    def bank(self, offset: int) -> int:
        """Return the bank of a byte of the scratchpad."""
        return offset // self.unit % self.count

    def error(self, mask: int, name: str, start: int, end: int, remedy: str) -> DescriptorError | None:
        """Return the error of bytes `start`..`end` of the scratchpad, None if they lie in the banks of the mask:
        CapacityError when they begin there and do not end there."""
        allowed = self.by_mask[mask]
        at = start
        last = min(end, start + self.count * self.unit)  # which has touched every bank
        while at < last:
            if not allowed >> self.bank(at) & 1:
                break
            at = at - at % self.unit + self.unit
        else:
            return None
        first = self.bank(start)
        if at == start:
            return DescriptorError(
                TicketError.OPERAND_OUTSIDE_BANKS,
                f"{name} is in banks {first}..{self.bank(end - 1)}, mask {mask:#04x}: it must begin in one of the mask",
            )
        level = f"banks {first}..{self.bank(at - 1)} of mask {mask:#04x}"
        return CapacityError(TicketError.OPERAND_OUTSIDE_BANKS, name, level, end - start, at - start, remedy)


def _banks_of_mask(mask: int, banks: int) -> int:
    """Return the banks of a mask, bit b for bank b: bit i of a mask names banks i*n/8 up to (i+1)*n/8."""
    bits = 0
    for bit in range(_MASK_BITS):
        if mask >> bit & 1:
            for bank in range(bit * banks // _MASK_BITS, (bit + 1) * banks // _MASK_BITS):
                bits |= 1 << bank
    return bits
