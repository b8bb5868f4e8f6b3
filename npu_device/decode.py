"""From a descriptor to a command, or to the reason why not (specification 20, "Descriptor" and "Errors")."""

from functools import partial

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, EXTENDED_SIZE, Descriptor
from npu_device.abi.errors import NpuDeviceError, TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import BITS, FUNCTIONS, DataType, Eltwise, Opcode
from npu_device.accumulators import Accumulators
from npu_device.command import Command
from npu_device.config import NpuConfig
from npu_device.descriptor_error import DescriptorError
from npu_device.events import Kind
from npu_device.macro import MACROS
from npu_device.macro.base import SLOT_ALIGNMENT, Operand, Setting, Site
from npu_device.memory import Memory
from npu_device.operands import ELEMENT_BYTES, INTEGERS, Matrix
from npu_device.operations import OPERATIONS, Operands, Operation, holds
from npu_device.plan import Plan, buffers
from npu_device.region import Region
from npu_device.scheduler import unit_counts
from npu_device.sequencer import Bus

_OPCODES = {int(opcode): opcode for opcode in Opcode}
_FUNCTION_VALUES = {opcode: frozenset(int(member) for member in kind) for opcode, kind in FUNCTIONS.items()}
_NO_FUNCTION = frozenset((0,))
_LAST_TYPE = max(DataType)
_MASK_BITS = 8


class Decoder:
    """Validates descriptors against one device. Called in the order of acceptance: it also gives held sums a place."""

    def __init__(self, config: NpuConfig, memory: Memory) -> None:
        """NpuDeviceError when the memory lacks a scratchpad of the configuration."""
        self._memory = memory
        self._clusters = config.clusters
        self._spm_size = config.spm.size
        self._spm = [SPM_BASE + cluster * SPM_CLUSTER_STRIDE for cluster in range(config.clusters)]
        for cluster, base in enumerate(self._spm):
            if not memory.holds(base, self._spm_size):
                raise NpuDeviceError(
                    f"scratchpad {cluster}: no memory at {base:#x}..{base + self._spm_size:#x}, "
                    "give the device a region there"
                )
        if config.spm.size % config.spm.banks:
            raise NpuDeviceError(f"spm.banks {config.spm.banks}: must divide spm.size {config.spm.size}")
        self._bank_bytes = config.spm.size // config.spm.banks
        self._banks_of = [_banks(mask, config.spm.banks) for mask in range(1 << _MASK_BITS)]
        self._units = unit_counts(config)
        self._te = config.te
        self._setting = Setting(
            Bus(config.dma.alignment, config.dma.bus_width_bytes),
            partial(buffers, config.dma.buffering),
            config.te.conv_lowering,
        )
        self.reset()

    def reset(self) -> None:
        """The device was reset: no sum is held."""
        self._accumulators = [
            Accumulators(cluster, self._te.count, self._te.acc_bytes) for cluster in range(self._clusters)
        ]

    def decode(self, d: Descriptor, prio: int, stream: int) -> Command:
        """The command, without ticket and number. `prio` and `stream` hold where the descriptor's own are 0.

        Raises DescriptorError.
        """
        opcode = _OPCODES.get(d.opcode)
        if opcode is None:
            raise DescriptorError(TicketError.OPCODE, f"opcode {d.opcode}")
        operation = OPERATIONS[opcode]
        self._header(d, opcode, operation)
        if d.extended:
            return self._macro(d, opcode, operation, prio, stream)
        if operation.operands is None:
            raise DescriptorError(TicketError.UNSUPPORTED, f"{opcode.name} in tile form")
        operands = operation.operands(d)
        self._place(d, operation, operands)
        command = Command(
            d,
            opcode,
            operation.kind,
            d.stream or stream,
            d.prio or prio,
            operands.inputs,
            operands.output,
            affinity=d.affinity,
            reads_output=opcode is Opcode.ELTWISE and d.function == Eltwise.WHERE,
        )
        if opcode is Opcode.GEMM_T and (d.accumulate or d.function):
            hold = command.holds = holds(d)
            integer = operands.inputs[0].kind in INTEGERS
            self._accumulators[d.cluster].plan(command, (d.tile_m, d.tile_n), integer, hold)
        return command

    def _header(self, d: Descriptor, opcode: Opcode, operation: Operation) -> None:
        if d.op_reserved:
            raise DescriptorError(TicketError.RESERVED, f"op[14:8] is {d.op_reserved:#x}, must be 0")
        if d.cluster >= self._clusters:
            raise DescriptorError(TicketError.CLUSTER, f"cluster {d.cluster} of {self._clusters}")
        if d.function not in _FUNCTION_VALUES.get(opcode, _NO_FUNCTION):
            raise DescriptorError(TicketError.FUNCTION, f"{opcode.name} has no function {d.function}")
        for option, value in (("accumulate", d.accumulate), ("in1_nk", d.in1_nk)):
            if value and option not in operation.options:
                raise DescriptorError(TicketError.RESERVED, f"flag {option} means nothing for {opcode.name}")
        units = 0 if operation.kind is None else self._units[operation.kind]
        if d.affinity > units:
            kind = "no unit" if operation.kind is None else f"{units} of {operation.kind.name}"
            raise DescriptorError(TicketError.AFFINITY, f"engine {d.affinity - 1}, {opcode.name} has {kind}")
        if d.bank_mask and not self._banks_of[d.bank_mask]:
            raise DescriptorError(TicketError.BANK_MASK, f"mask {d.bank_mask:#04x}")
        last = max(d.type_in0, d.type_in1, d.type_out, d.type_kv)
        if last > _LAST_TYPE:
            raise DescriptorError(TicketError.DATA_TYPE, f"type {last} does not exist")

    # -- macro form --------------------------------------------------------------------------------------------

    def _macro(self, d: Descriptor, opcode: Opcode, operation: Operation, prio: int, stream: int) -> Command:
        block = self._block(d, opcode, operation)
        site = Site(self._spm[d.cluster], self._spm_size, self._te.acc_bytes)
        workspace = self._workspace(d, block)
        macro = MACROS[opcode](d, block, site)
        for operand in macro.operands:
            self._check_macro(d, operand, workspace)
        command = Command(
            d, opcode, operation.kind, d.stream or stream, d.prio or prio, affinity=d.affinity, macro=macro,
            workspace=workspace,
        )  # fmt: skip
        command.expand = partial(_expand, command, self._setting)
        if macro.held_shape is not None and (d.accumulate or d.function):
            command.holds = holds(d)
            self._accumulators[d.cluster].plan(command, macro.held_shape, d.type_in0 in INTEGERS, command.holds)
        return command

    def _block(self, d: Descriptor, opcode: Opcode, operation: Operation) -> Extended:
        if not operation.macro:
            raise DescriptorError(TicketError.RESERVED, f"{opcode.name} has no macro form")
        if d.param1 % DESCRIPTOR_SIZE or self._in_spm(d.param1, EXTENDED_SIZE):
            raise DescriptorError(
                TicketError.EXTENDED_BLOCK, f"{d.param1:#x} must be a multiple of {DESCRIPTOR_SIZE} in DRAM"
            )
        data = self._memory.read(d.param1, EXTENDED_SIZE)
        if data is None:
            raise DescriptorError(TicketError.EXTENDED_BLOCK, f"no memory at {d.param1:#x}")
        block = Extended.unpack(data)
        if block.ext_reserved:
            raise DescriptorError(TicketError.RESERVED, f"extended block at {d.param1:#x}: word 84 must be 0")
        if block.leftover(opcode):
            raise DescriptorError(
                TicketError.RESERVED,
                f"extended block at {d.param1:#x}: bytes that {opcode.name} does not use must be 0",
            )
        return block

    def _workspace(self, d: Descriptor, block: Extended) -> Region | None:
        size = block.workspace_bytes
        if not size:
            return None
        base, at = self._spm[d.cluster], block.workspace
        if at % SLOT_ALIGNMENT:
            raise DescriptorError(TicketError.MISALIGNED, f"workspace {at:#x}: must be a multiple of {SLOT_ALIGNMENT}")
        if at < base or at + size > base + self._spm_size:
            raise DescriptorError(
                TicketError.WORKSPACE, f"{at:#x}..{at + size:#x} is not in the scratchpad of cluster {d.cluster}"
            )
        self._check_banks(d, "workspace", at, at + size)
        return Region(at, 1, size, size)

    def _check_macro(self, d: Descriptor, operand: Operand, workspace: Region | None) -> None:
        """Operands may be in DRAM or in the cluster's own scratchpad, outside the workspace."""
        name, region = operand.name, operand.region
        address, end = region.address, region.end
        if address % operand.element or region.stride % operand.element:
            raise DescriptorError(TicketError.MISALIGNED, f"{name} {address:#x} in rows of {region.stride:#x}")
        if not self._memory.holds(address, end - address):
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x}..{end:#x}")
        base = self._spm[d.cluster]
        if base <= address and end <= base + self._spm_size:
            self._check_banks(d, name, address, end)
            if workspace is not None and address < workspace.end and workspace.address < end:
                raise DescriptorError(TicketError.WORKSPACE, f"{name} {address:#x}..{end:#x} lies in the workspace")
        elif self._in_spm(address, end - address):
            raise DescriptorError(
                TicketError.ADDRESS, f"{name} {address:#x} is in the scratchpad of another cluster than {d.cluster}"
            )

    # -- places ------------------------------------------------------------------------------------------------

    def _in_spm(self, address: int, size: int) -> bool:
        for base in self._spm:  # noqa: SIM110 - called for each operand, a generator would double its cost
            if base < address + size and address < base + self._spm_size:
                return True
        return False

    def _place(self, d: Descriptor, operation: Operation, operands: Operands) -> None:
        in_dram = operation.in_dram
        for index, matrix in enumerate(operands.inputs):
            name = f"in{index}"
            self._check(d, name, matrix, name == in_dram)
        if operands.output is not None:
            self._check(d, "out", operands.output, in_dram == "out")

    def _check(self, d: Descriptor, name: str, matrix: Matrix, in_dram: bool) -> None:
        region = matrix.region
        address, end = region.address, region.end
        element = ELEMENT_BYTES[matrix.kind]
        if address % element or region.stride % element:
            raise DescriptorError(TicketError.MISALIGNED, f"{name} {address:#x} in rows of {region.stride:#x}")
        base = self._spm[d.cluster]
        if base <= address and end <= base + self._spm_size:
            if in_dram:
                raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x} must be in DRAM")
            self._check_banks(d, name, address, end)
            return
        if not in_dram and region.payload > self._spm_size:
            row = -(-region.payload // matrix.rows)
            raise DescriptorError(
                TicketError.SHAPE,
                f"{name} has {region.payload} bytes, the scratchpad {self._spm_size}: "
                f"{region.payload - self._spm_size} too many; nearest legal: {_fitting(self._spm_size, row, matrix)}",
            )
        if not self._memory.holds(address, end - address):
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x}..{end:#x}")
        if not in_dram:
            raise DescriptorError(TicketError.OPERAND_NOT_IN_SPM, f"{name} {address:#x} of cluster {d.cluster}")
        if self._in_spm(address, end - address):
            raise DescriptorError(TicketError.ADDRESS, f"{name} {address:#x} must be in DRAM")

    def _check_banks(self, d: Descriptor, name: str, address: int, end: int) -> None:
        """Bytes of the cluster's scratchpad lie in the banks of the mask."""
        if not d.bank_mask:
            return
        base = self._spm[d.cluster]
        first, last = (address - base) // self._bank_bytes, (end - 1 - base) // self._bank_bytes
        if any(not self._banks_of[d.bank_mask] >> bank & 1 for bank in range(first, last + 1)):
            raise DescriptorError(
                TicketError.OPERAND_OUTSIDE_BANKS, f"{name} is in banks {first}..{last}, mask {d.bank_mask:#04x}"
            )


def _fitting(room: int, row: int, matrix: Matrix) -> str:
    """The largest part of a matrix, in whole rows or of one row, that `room` bytes hold."""
    if row <= room:
        return f"{room // row} rows of {matrix.columns}"
    return f"1 row of {room * 8 // BITS[matrix.kind]}"


def _expand(command: Command, setting: Setting) -> Plan:
    assert command.macro is not None
    return command.macro.plan(setting)


def _banks(mask: int, banks: int) -> int:
    """Bit b is set when bank b belongs to the mask: bit i of a mask names banks i*n/8 up to (i+1)*n/8."""
    chosen = 0
    for bit in range(_MASK_BITS):
        if mask >> bit & 1:
            for bank in range(bit * banks // _MASK_BITS, (bit + 1) * banks // _MASK_BITS):
                chosen |= 1 << bank
    return chosen


assert all(operation.kind in (None, Kind.TE, Kind.VE, Kind.DMA) for operation in OPERATIONS.values())
