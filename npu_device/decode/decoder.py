"""Decoder of descriptors: commands, or reasons of refusal (docs/interface.md, "Descriptor" and "Errors")."""

from typing import NamedTuple

from npu_device.abi.descriptor import DESCRIPTOR_SIZE, EXTENDED_SIZE, STATUS_OFFSET, Descriptor
from npu_device.abi.errors import AbiError, TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.kv_block import KV_HALF_SIZE
from npu_device.abi.opcodes import FUNCTIONS, DataType, Eltwise, Opcode
from npu_device.config import NpuConfig
from npu_device.decode.command import Command, Order, Sum, Sums
from npu_device.decode.operand_regions import OperandRegions
from npu_device.decode.tile_plan import tile_step
from npu_device.memory.memory import Memory
from npu_device.memory.operands import INTEGERS
from npu_device.memory.region import Region, operand_words
from npu_device.operations.checks import DescriptorError, NoRoomError
from npu_device.operations.limits import check_pads
from npu_device.operations.macro.base import setting_of
from npu_device.operations.tile_form import ALIGNING, OPERATIONS, Operation, holds, pool_window
from npu_device.trace.events import Kind, unit_counts
from pyv_native.state import StateError

_NO_STATUS = bytes(DESCRIPTOR_SIZE - STATUS_OFFSET)


def request_of(data: bytes) -> Descriptor:
    """Unpack 64 bytes without status and ticket, which are not of the request."""
    return Descriptor.unpack(data[:STATUS_OFFSET] + _NO_STATUS)


class Uses(NamedTuple):
    """Memory that a descriptor is about; no regions where it is invalid."""

    descriptor: Descriptor
    """Without status and ticket."""
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    """Without its workspace, and without what stays in an accumulator."""


_OPCODES = {int(opcode): opcode for opcode in Opcode}
_FUNCTION_VALUES = {opcode: frozenset(int(member) for member in kind) for opcode, kind in FUNCTIONS.items()}
_NO_FUNCTION = frozenset((0,))
_LAST_TYPE = max(DataType)


class Decoder:
    """Validates descriptors against one device. Called in the order of acceptance: it also assigns accumulators."""

    def __init__(self, config: NpuConfig, memory: Memory, sums: Sums) -> None:
        """`sums`: those that commands hold. NpuDeviceError when the memory lacks a scratchpad of the configuration."""
        self._memory, self._sums = memory, sums
        self._regions = OperandRegions(config, memory)
        self._clusters = config.clusters
        self._units = unit_counts(config)
        self._limits = config.limits
        self._bus = setting_of(config).bus
        self._costs = config.ve.operations
        self._most_aligned = min(
            config.dram.interleave, config.l2.line if config.l2.enabled else config.dram.interleave
        )

    def decode(self, d: Descriptor, prio: int = 0, stream: int = 0, order: Order | None = None) -> Command:
        """Return the command of a descriptor, without ticket and number. `prio` and `stream` hold where those of the
        descriptor are 0. `order`: of an equal descriptor in tile form that was decoded before.

        Raises DescriptorError; where something does not fit, it suggests a legal tile.
        """
        try:
            command = self._command(order or self._order(d), prio, stream)
        except NoRoomError as error:
            if error.remedy:
                raise
            from npu_device.decode.legal_tile import nearest_tile

            raise error.with_remedy(nearest_tile(d, lambda tile: self._command(self._order(tile)))) from None
        if command.order.total is not None:
            self._sums.bind(command, command.order.total)
        return command

    def uses(self, data: bytes) -> Uses:
        """Return the operands of 64 bytes and of the extended block that they name, as it is now. Changes nothing."""
        d = request_of(data)
        try:
            order = self._order(d)
        except DescriptorError:
            return Uses(d)
        if order.macro is None:
            return Uses(d, order.reads, order.writes)
        operands = order.macro.operands
        writes = () if order.holds else tuple([one.region for one in operands if one.written])
        return Uses(d, tuple([one.region for one in operands if not one.written]), writes)

    def restored(self, descriptor: bytes, block: bytes | None, prio: int, stream: int) -> Command:
        """Return the command that these bytes became when they were valid, without its sum. StateError if they are
        not."""
        try:
            order = self._order(request_of(descriptor), block)
        except DescriptorError as error:
            raise StateError(str(error)) from None
        if (order.macro is None) != (block is None):
            raise StateError("descriptor and block do not belong together")
        command = Command(order, stream, prio)
        command.affinity = order.descriptor.affinity
        return command

    # -- validation --------------------------------------------------------------------------------------------

    def _command(self, order: Order, prio: int = 0, stream: int = 0) -> Command:
        """Return a command whose sum fits the accumulators; nothing has changed."""
        d = order.descriptor
        command = Command(order, d.stream or stream, d.prio or prio)
        if d.affinity:
            command.affinity = d.affinity
        if order.total is not None:
            self._sums.check(command, order.total)
        return command

    def _order(self, d: Descriptor, block: bytes | None = None) -> Order:
        """Decode a valid descriptor; `block`: its extended block, if that is not the block in memory."""
        opcode = _OPCODES.get(d.opcode)
        if opcode is None:
            raise DescriptorError(TicketError.OPCODE, f"opcode {d.opcode}: must be 0..{max(_OPCODES)}")
        operation = OPERATIONS[opcode]
        self._header(d, opcode, operation)
        macro = d.extended and opcode is not Opcode.CORE  # whose block is for firmware
        return self._macro_form(d, opcode, operation, block) if macro else self._tile_form(d, opcode, operation)

    def _header(self, d: Descriptor, opcode: Opcode, operation: Operation) -> None:
        if d.op_reserved:
            raise DescriptorError(TicketError.RESERVED, f"op[14:10] is {d.op_reserved:#x}, must be 0")
        if d.cluster >= self._clusters:
            raise DescriptorError(
                TicketError.CLUSTER, f"cluster {d.cluster} of {self._clusters}: must be below, or raise npu.clusters"
            )
        if d.function not in _FUNCTION_VALUES.get(opcode, _NO_FUNCTION):
            known = ", ".join(map(str, sorted(_FUNCTION_VALUES.get(opcode, _NO_FUNCTION))))
            raise DescriptorError(TicketError.FUNCTION, f"{opcode.name} has no function {d.function}: must be {known}")
        for option, value in (("accumulate", d.accumulate), ("in1_nk", d.in1_nk)):
            if value and option not in operation.options:
                raise DescriptorError(TicketError.RESERVED, f"flag {option} means nothing for {opcode.name}: must be 0")
        units = 0 if operation.kind is None else self._units[operation.kind]
        if d.affinity > units:
            kind = "no unit" if operation.kind is None else f"{units} of {operation.kind.name}"
            rule = f"affinity must be 0 (any){f' or 1..{units}' if units else ''}"
            raise DescriptorError(TicketError.AFFINITY, f"engine {d.affinity - 1}, {opcode.name} has {kind}: {rule}")
        if d.bank_mask:
            self._regions.banks.check_mask(d.bank_mask)
        last = max(d.type_in0, d.type_in1, d.type_out, d.type_kv)
        if last > _LAST_TYPE:
            raise DescriptorError(TicketError.DATA_TYPE, f"type {last} does not exist: must be at most {_LAST_TYPE}")

    # -- the two forms -----------------------------------------------------------------------------------------

    def _tile_form(self, d: Descriptor, opcode: Opcode, operation: Operation) -> Order:
        if operation.operands is None:
            raise DescriptorError(TicketError.UNSUPPORTED, f"{opcode.name} in tile form: give it an extended block")
        inputs, output = operation.operands(d)
        if opcode in ALIGNING and d.tile_n:
            self._alignment("tile_n", d.tile_n)
        in_dram = operation.in_dram
        for index, matrix in enumerate(inputs):
            self._regions.tile_operand(d, _INPUTS[index], matrix, in_dram == _INPUTS[index])
        if output is None:
            return Order(d, opcode, operation.kind)
        self._regions.tile_operand(d, "out", output, in_dram == "out")
        if opcode is Opcode.POOL:
            check_pads(self._limits, pool_window(d), d.tile_k)
        total = None
        if opcode is Opcode.GEMM_T and (d.accumulate or d.function):
            total = Sum((d.tile_m, d.tile_n), inputs[0].kind in INTEGERS, holds(d))
        kept = total is not None and total.hold
        reads, writes = tuple([matrix.region for matrix in inputs]), () if kept else (output.region,)
        order = Order(
            d, opcode, operation.kind, inputs, output, reads, writes,
            opcode is Opcode.ELTWISE and d.function == Eltwise.WHERE,
            holds=kept,
            total=total,
        )  # fmt: skip
        return order._replace(step=tile_step(order, self._bus, self._costs), operands=operand_words(reads, writes))

    def _macro_form(self, d: Descriptor, opcode: Opcode, operation: Operation, data: bytes | None) -> Order:
        block = self._block(d, opcode, operation, data)
        workspace = self._regions.workspace(d, block.workspace, block.workspace_bytes)
        from npu_device.operations.macro.table import MACROS  # eleven modules that tile commands do without

        site = self._regions.site(d.cluster)
        if d.type_kv == DataType.ENCODED:
            addresses = block.scale, block.scale + KV_HALF_SIZE
            site = site._replace(kv_halves=tuple(self._memory.read(address, KV_HALF_SIZE) for address in addresses))
        macro = MACROS[opcode](d, block, site)
        for operand in macro.operands:
            self._regions.macro_operand(d, operand, workspace)
        total = None
        if macro.accumulator_shape is not None and (d.accumulate or d.function):
            total = Sum(macro.accumulator_shape, d.type_in0 in INTEGERS, holds(d))
        kept = total is not None and total.hold
        return Order(d, opcode, operation.kind, macro=macro, workspace=workspace, holds=kept, total=total)

    def _block(self, d: Descriptor, opcode: Opcode, operation: Operation, data: bytes | None) -> Extended:
        if not operation.macro:
            raise DescriptorError(TicketError.RESERVED, f"{opcode.name} has no macro form: bit 15 of op must be 0")
        if d.param1 % DESCRIPTOR_SIZE or self._regions.in_spm(d.param1, EXTENDED_SIZE):
            raise DescriptorError(
                TicketError.EXTENDED_BLOCK, f"{d.param1:#x} must be a multiple of {DESCRIPTOR_SIZE} in DRAM"
            )
        if data is None:
            data = self._memory.read(d.param1, EXTENDED_SIZE)
        if data is None:
            raise DescriptorError(
                TicketError.EXTENDED_BLOCK, f"no memory at {d.param1:#x}: must be {EXTENDED_SIZE} bytes of DRAM"
            )
        block = Extended.unpack(data)
        try:
            aligned = block.aligned()
        except AbiError as error:
            raise DescriptorError(TicketError.RESERVED, f"extended block at {d.param1:#x}: {error}") from None
        for name, size in aligned.items():
            self._alignment(f"alignment of {name}", size)
        if block.leftover(opcode):
            raise DescriptorError(
                TicketError.RESERVED,
                f"extended block at {d.param1:#x}: bytes that {opcode.name} does not use must be 0",
            )
        return block

    def _alignment(self, name: str, size: int) -> None:
        """Check that an access is on one DRAM channel, and made of whole lines of the L2."""
        if size & size - 1 or size > self._most_aligned:
            raise DescriptorError(
                TicketError.SHAPE, f"{name} {size}: must be a power of two up to {self._most_aligned}, which is the "
                f"least of dram.interleave and l2.line"
            )  # fmt: skip


_INPUTS = ("in0", "in1")

assert all(operation.kind in (None, Kind.TE, Kind.VE, Kind.DMA) for operation in OPERATIONS.values())
