"""Legal regions of operands: DRAM, the cluster's own scratchpad, the banks of the mask, the workspace."""

from npu_device.abi.descriptor import Descriptor
from npu_device.abi.errors import TicketError
from npu_device.config import NpuConfig
from npu_device.decode.banks import Banks
from npu_device.decode.tile_decode import DecodeFault
from npu_device.memory.memory import Memory, scratchpads
from npu_device.memory.operands import ELEMENT_BYTES, Matrix
from npu_device.memory.region import Region
from npu_device.operations.checks import CapacityError, DescriptorError
from npu_device.operations.macro.base import Operand
from npu_device.operations.macro.workspace import SLOT_ALIGNMENT, Site


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

    def tile_error(self, d: Descriptor, name: str, matrix: Matrix, fault: DecodeFault) -> DescriptorError:
        """Return the error of an operand of the tile form."""
        region = matrix.region
        address, end = region.address, region.end
        base = self._bases[d.cluster]
        top = base + self._size
        match fault:
            case DecodeFault.MISALIGNED:
                return _alignment_error(name, region, ELEMENT_BYTES[matrix.kind])
            case DecodeFault.BEYOND_SPM:
                code = TicketError.SHAPE if region.payload > self._size else TicketError.ADDRESS
                return CapacityError(code, name, f"scratchpad from {address:#x}", end - address, top - address)
            case DecodeFault.BANKS:
                error = self.banks.error(d.bank_mask, name, address - base, end - base, "")
                assert error is not None, "the device has refused its banks"
                return error
            case DecodeFault.NOT_IN_SPM:
                rule = f"must be in {base:#x}..{top:#x}; LOAD or STORE moves it"
                text = f"{name} {address:#x} of cluster {d.cluster}: {rule}"
                return DescriptorError(TicketError.OPERAND_NOT_IN_SPM, text)
            case DecodeFault.NOT_IN_DRAM:
                return DescriptorError(TicketError.ADDRESS, f"{name} {address:#x} must be in DRAM")
        return _memory_error(name, region)

    def workspace(self, d: Descriptor, at: int, size: int) -> Region | None:
        """Return the workspace of the macro form, None without bytes."""
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
            space = top - at
            raise CapacityError(
                TicketError.WORKSPACE, "workspace", f"scratchpad from {at:#x}", size, space,
                f"give workspace_bytes {space} or begin at {base:#x}",
            )  # fmt: skip
        remedy = "give fewer workspace_bytes"
        if d.bank_mask and (error := self.banks.error(d.bank_mask, "workspace", at - base, end - base, remedy)):
            raise error
        return Region(at, 1, size, size)

    def macro_operand(self, d: Descriptor, operand: Operand, workspace: Region | None) -> None:
        """Check that an operand of the macro form is in DRAM or in the cluster's own scratchpad, outside the
        workspace."""
        name, region = operand.name, operand.region
        address, end = region.address, region.end
        if address % operand.element or region.stride % operand.element:
            raise _alignment_error(name, region, operand.element)
        base = self._bases[d.cluster]
        top = base + self._size
        if base <= address < top:
            remedy = "put it into DRAM, its size is not the tile's"
            if end > top:
                raise CapacityError(
                    TicketError.ADDRESS, name, f"scratchpad from {address:#x}", end - address, top - address, remedy
                )
            if d.bank_mask and (error := self.banks.error(d.bank_mask, name, address - base, end - base, remedy)):
                raise error
            if workspace is not None and address < workspace.end and workspace.address < end:
                raise DescriptorError(
                    TicketError.WORKSPACE, f"{name} {address:#x}..{end:#x} lies in the workspace: must be outside it"
                )
            return
        if not self._memory.holds(address, end - address):
            raise _memory_error(name, region)
        if self.in_spm(address, end - address):
            raise DescriptorError(
                TicketError.ADDRESS, f"{name} {address:#x}: must be in DRAM or the scratchpad of cluster {d.cluster}"
            )


def _memory_error(name: str, region: Region) -> DescriptorError:
    rule = "must be in DRAM or the scratchpad of its cluster"
    return DescriptorError(TicketError.ADDRESS, f"{name} {region.address:#x}..{region.end:#x}: {rule}")


def _alignment_error(name: str, region: Region, element: int) -> DescriptorError:
    text = f"{name} {region.address:#x} in rows of {region.stride:#x}: both must be multiples of {element}"
    return DescriptorError(TicketError.MISALIGNED, text)
