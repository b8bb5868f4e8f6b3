"""Legal regions of operands: DRAM, the cluster's own scratchpad, the banks of the mask, the workspace."""

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.config import NpuConfig, SpmConfig
from npu_device.memory.memory import Memory, scratchpads
from npu_device.memory.operands import ELEMENT_BYTES, Matrix
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError, NoRoomError
from npu_device.operations.macro.base import Operand
from npu_device.operations.macro.workspace import SLOT_ALIGNMENT, Site

_MASK_BITS = 8
_INTERLEAVED = 64
"""Bytes of a bank before the next one with `spm.interleave` 64B."""


class Banks:
    """Banks of the masks of a device."""

    def __init__(self, spm: SpmConfig) -> None:
        self._count = spm.banks
        self._unit = spm.size // spm.banks if spm.interleave == "block" else _INTERLEAVED
        self._named = [_named(mask, spm.banks) for mask in range(1 << _MASK_BITS)]

    def check_mask(self, mask: int) -> None:
        """DescriptorError when it names no bank."""
        if mask and not self._named[mask]:
            useful = sum(1 << bit for bit in range(_MASK_BITS) if self._named[1 << bit])
            raise DescriptorError(
                TicketError.BANK_MASK,
                f"mask {mask:#04x} of spm.banks {self._count}: bits that do are {useful:#04x}",
            )

    def bank(self, offset: int) -> int:
        """Return the bank of a byte of the scratchpad."""
        return offset // self._unit % self._count

    def check(self, mask: int, name: str, start: int, end: int, remedy: str) -> None:
        """Bytes `start`..`end` of the scratchpad lie in the banks of the mask.

        NoRoomError when they begin there and do not end there, DescriptorError when they do not begin there.
        """
        allowed = self._named[mask]
        at = start
        last = min(end, start + self._count * self._unit)  # which has touched every bank
        while at < last:
            if not allowed >> self.bank(at) & 1:
                break
            at = at - at % self._unit + self._unit
        else:
            return
        first = self.bank(start)
        if at == start:
            raise DescriptorError(
                TicketError.OPERAND_OUTSIDE_BANKS,
                f"{name} is in banks {first}..{self.bank(end - 1)}, mask {mask:#04x}: it must begin in one of the mask",
            )
        level = f"banks {first}..{self.bank(at - 1)} of mask {mask:#04x}"
        raise NoRoomError(TicketError.OPERAND_OUTSIDE_BANKS, name, level, end - start, at - start, remedy)


class OperandRegions:
    """Checks operands of one device. Every check raises DescriptorError."""

    def __init__(self, config: NpuConfig, memory: Memory) -> None:
        """NpuDeviceError when the memory lacks a scratchpad of the configuration."""
        self._memory = memory
        self._size = size = config.spm.size
        self._bases = scratchpads(config, memory)
        self.banks = Banks(config.spm)
        te, bank = config.te, size // config.spm.banks
        fold = (te.rows, te.columns) if te.kind == "systolic_ws_pipe" else None
        kv, costs = config.kv_quant, config.ve.operations
        shared = size, te.acc_bytes, bank, config.limits, fold, costs, kv.p_out_permille, kv.write_combine
        self._sites = [Site(base, *shared) for base in self._bases]

    def site(self, cluster: int) -> Site:
        return self._sites[cluster]

    def in_spm(self, address: int, size: int) -> bool:
        """Check whether any of the bytes is in a scratchpad."""
        for base in self._bases:  # noqa: SIM110 - called for each operand, a generator would double its cost
            if base < address + size and address < base + self._size:
                return True
        return False

    def tile_operand(self, d: Descriptor, name: str, matrix: Matrix, in_dram: bool) -> None:
        """Check that an operand of the tile form is in the scratchpad, or with `in_dram` in DRAM."""
        region = matrix.region
        address, end = region.address, region.end
        element = ELEMENT_BYTES[matrix.kind]
        if element > 1 and (address % element or region.stride % element):
            raise _misaligned(name, region, element)
        base = self._bases[d.cluster]
        top = base + self._size
        if base <= address < top and not in_dram:
            if end > top:
                code = TicketError.SHAPE if region.payload > self._size else TicketError.ADDRESS
                raise NoRoomError(code, name, f"scratchpad from {address:#x}", end - address, top - address)
            if d.bank_mask:
                self.banks.check(d.bank_mask, name, address - base, end - base, "")
            return
        if not self._memory.holds(address, end - address):
            where = "must be in DRAM or the scratchpad of its cluster"
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x}..{end:#x}: {where}")
        if not in_dram:
            raise DescriptorError(
                TicketError.OPERAND_NOT_IN_SPM,
                f"{name} {address:#x} of cluster {d.cluster}: must be in {base:#x}..{top:#x}; LOAD or STORE moves it",
            )
        if self.in_spm(address, end - address):
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x} must be in DRAM")

    def workspace(self, d: Descriptor, at: int, size: int) -> Region | None:
        """Return the workspace of the macro form, None for one without bytes."""
        if not size:
            return None
        base, end = self._bases[d.cluster], at + size
        top = base + self._size
        if at % SLOT_ALIGNMENT:
            raise DescriptorError(TicketError.MISALIGNED, f"workspace {at:#x}: must be a multiple of {SLOT_ALIGNMENT}")
        if not base <= at < top:
            raise DescriptorError(
                TicketError.WORKSPACE, f"{at:#x}..{end:#x}: must be in the scratchpad of cluster {d.cluster}"
            )
        if end > top:
            room = top - at
            raise NoRoomError(
                TicketError.WORKSPACE, "workspace", f"scratchpad from {at:#x}", size, room,
                f"give workspace_bytes {room} or begin at {base:#x}",
            )  # fmt: skip
        if d.bank_mask:
            self.banks.check(d.bank_mask, "workspace", at - base, end - base, "give fewer workspace_bytes")
        return Region(at, 1, size, size)

    def macro_operand(self, d: Descriptor, operand: Operand, workspace: Region | None) -> None:
        """Check that an operand of the macro form is in DRAM or in the cluster's own scratchpad, outside the
        workspace."""
        name, region = operand.name, operand.region
        address, end = region.address, region.end
        if address % operand.element or region.stride % operand.element:
            raise _misaligned(name, region, operand.element)
        base = self._bases[d.cluster]
        top = base + self._size
        if base <= address < top:
            remedy = "put it into DRAM, its size is not the tile's"
            if end > top:
                raise NoRoomError(
                    TicketError.ADDRESS, name, f"scratchpad from {address:#x}", end - address, top - address, remedy
                )
            if d.bank_mask:
                self.banks.check(d.bank_mask, name, address - base, end - base, remedy)
            if workspace is not None and address < workspace.end and workspace.address < end:
                raise DescriptorError(
                    TicketError.WORKSPACE, f"{name} {address:#x}..{end:#x} lies in the workspace: must be outside it"
                )
            return
        if not self._memory.holds(address, end - address):
            where = "must be in DRAM or the scratchpad of its cluster"
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x}..{end:#x}: {where}")
        if self.in_spm(address, end - address):
            raise DescriptorError(
                TicketError.ADDRESS, f"{name} {address:#x}: must be in DRAM or the scratchpad of cluster {d.cluster}"
            )


def _named(mask: int, banks: int) -> int:
    """Bit b is set when bank b belongs to the mask: bit i of a mask names banks i*n/8 up to (i+1)*n/8."""
    chosen = 0
    for bit in range(_MASK_BITS):
        if mask >> bit & 1:
            for bank in range(bit * banks // _MASK_BITS, (bit + 1) * banks // _MASK_BITS):
                chosen |= 1 << bank
    return chosen


def _misaligned(name: str, region: Region, element: int) -> DescriptorError:
    text = f"{name} {region.address:#x} in rows of {region.stride:#x}: both must be multiples of {element}"
    return DescriptorError(TicketError.MISALIGNED, text)
