"""Decoder of descriptors: commands, or reasons of refusal (docs/interface.md, "Descriptor" and "Errors")."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple, NoReturn

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi.descriptor import STATUS_OFFSET, Descriptor
from npu_device.abi.errors import AbiError, TicketError
from npu_device.abi.extended import Extended
from npu_device.abi.kv_block import KV_HALF_SIZE
from npu_device.abi.opcodes import FUNCTIONS, DataType, Opcode
from npu_device.config import NpuConfig
from npu_device.cost.plan import Piece
from npu_device.decode.command import Command, Order, Sum, Sums, tile_order
from npu_device.decode.operand_regions import OperandRegions
from npu_device.decode.tile_decode import DecodeFault, decode_tile
from npu_device.decode.tile_plan import tile_step
from npu_device.decode.tile_state import CAPACITIES, RULES, TileDecoder, add_regions, fill_decoder, max_alignment
from npu_device.memory.memory import Memory
from npu_device.memory.operands import INTEGERS
from npu_device.memory.region import Region
from npu_device.operations.checks import CapacityError, DescriptorError
from npu_device.operations.limits import check_pads
from npu_device.operations.macro.base import setting_of
from npu_device.operations.tile_form import OPERATIONS, Operation, holds_sum, pool_window
from npu_device.trace.events import Kind, unit_counts
from pyv_native.arena import ROOT, Arena
from pyv_native.module import NativeModule
from pyv_native.state import StateError

_NO_STATUS = bytes(DESCRIPTOR_SIZE - STATUS_OFFSET)


def request_of(data: bytes) -> Descriptor:
    """Unpack 64 bytes without status and ticket, which the device writes."""
    return Descriptor.unpack(data[:STATUS_OFFSET] + _NO_STATUS)


class Uses(NamedTuple):
    """Memory that a descriptor is about; no regions where it is invalid."""

    descriptor: Descriptor
    """Without status and ticket."""
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    """Without its workspace, and without what stays in an accumulator."""


@cache
def _decode() -> Callable[..., int]:
    return NativeModule((decode_tile,), TileDecoder).entry(decode_tile)


@lru_cache(64)  # many devices have one configuration
def _records(config: NpuConfig) -> bytes:
    """Return the records of a decoder without a memory."""
    arena = Arena(TileDecoder, CAPACITIES)
    fill_decoder(arena.root, config)
    return bytes(arena.buffer[ROOT:])


class Decoder:
    """Validates descriptors against one device. Called in the order of acceptance: it also assigns accumulators."""

    def __init__(self, config: NpuConfig, memory: Memory, sums: Sums) -> None:
        """`sums`: those that commands hold. NpuDeviceError when the memory lacks a scratchpad of the configuration."""
        self._memory, self._sums = memory, sums
        self._regions = OperandRegions(config, memory)
        self._config = config
        self._units = unit_counts(config)
        self._bus = setting_of(config).bus
        self._arena = Arena(TileDecoder, records=_records(config))
        add_regions(self._arena.root, memory)
        first = self._arena.root.words.offset
        self._descriptor = self._arena.bytes[first : first + DESCRIPTOR_SIZE]

    def decode(self, d: Descriptor, prio: int = 0, stream: int = 0) -> Command:
        """Return the command of a descriptor, without ticket and number. `prio` and `stream` hold where those of the
        descriptor are 0.

        Raises DescriptorError; where something does not fit, it suggests a legal tile.
        """
        try:
            command = self._command(self._order(d), prio, stream)
        except CapacityError as error:
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
        writes = () if order.holds else tuple([operand.region for operand in operands if operand.written])
        return Uses(d, tuple([operand.region for operand in operands if not operand.written]), writes)

    def restore(self, descriptor: bytes, block: bytes | None, prio: int, stream: int) -> Command:
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
        self._descriptor[:] = d.pack()
        fault = DecodeFault(_decode()(self._arena))
        if fault:
            self._refuse(d, fault)
        opcode = Opcode(d.opcode)
        if d.extended and opcode is not Opcode.CORE:  # whose block is for firmware
            return self._macro_form(d, opcode, OPERATIONS[opcode], block)
        order = tile_order(d)
        if order.output is None:
            return order
        return order._replace(step=self.step(order))

    def step(self, order: Order) -> tuple[Piece, int]:
        """Return the work of the unit of an order in tile form, and the DRAM address that it begins at."""
        return tile_step(order, self._bus, self._config.ve.operations)

    def _refuse(self, d: Descriptor, fault: DecodeFault) -> NoReturn:
        """Raise the error of a descriptor with a fault."""
        opcodes = {int(opcode): opcode for opcode in Opcode}
        if fault is DecodeFault.OPCODE:
            raise DescriptorError(TicketError.OPCODE, f"opcode {d.opcode}: must be 0..{max(opcodes)}")
        opcode = opcodes[d.opcode]
        operation = OPERATIONS[opcode]
        match fault:
            case DecodeFault.RESERVED_BITS:
                raise DescriptorError(TicketError.RESERVED, f"op[14:10] is {d.op_reserved:#x}, must be 0")
            case DecodeFault.CLUSTER:
                rule = "must be below, or raise npu.clusters"
                raise DescriptorError(TicketError.CLUSTER, f"cluster {d.cluster} of {self._config.clusters}: {rule}")
            case DecodeFault.FUNCTION:
                functions = ", ".join(str(int(function)) for function in FUNCTIONS.get(opcode, (0,)))
                text = f"{opcode.name} has no function {d.function}: must be {functions}"
                raise DescriptorError(TicketError.FUNCTION, text)
            case DecodeFault.OPTION:
                option = "in1_nk" if not d.accumulate or "accumulate" in operation.options else "accumulate"
                text = f"flag {option} means nothing for {opcode.name}: must be 0"
                raise DescriptorError(TicketError.RESERVED, text)
            case DecodeFault.AFFINITY:
                units = 0 if operation.kind is None else self._units[operation.kind]
                kind = "no unit" if operation.kind is None else f"{units} of {operation.kind.name}"
                rule = f"affinity must be 0 (any){f' or 1..{units}' if units else ''}"
                text = f"engine {d.affinity - 1}, {opcode.name} has {kind}: {rule}"
                raise DescriptorError(TicketError.AFFINITY, text)
            case DecodeFault.BANK_MASK:
                raise self._regions.banks.mask_error(d.bank_mask)
            case DecodeFault.TYPE:
                highest = max(d.type_in0, d.type_in1, d.type_out, d.type_kv)
                rule = f"must be at most {max(DataType)}"
                raise DescriptorError(TicketError.DATA_TYPE, f"type {highest} does not exist: {rule}")
            case DecodeFault.NO_TILE_FORM:
                text = f"{opcode.name} in tile form: give it an extended block"
                raise DescriptorError(TicketError.UNSUPPORTED, text)
            case DecodeFault.RULE:
                rule = RULES[self._arena.root.detail]
                raise DescriptorError(rule.code, rule.reason(d))
            case DecodeFault.ALIGNMENT:
                raise self._alignment_error("tile_n", d.tile_n)
            case DecodeFault.PADS:
                check_pads(self._config.limits, pool_window(d), d.tile_k)
        operand = operation.forms[d.function].operands[self._arena.root.detail]
        raise self._regions.tile_error(d, operand.name, operand.matrix(d), fault)

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
            total = Sum(macro.accumulator_shape, d.type_in0 in INTEGERS, holds_sum(d))
        keeps = total is not None and total.hold
        return Order(d, opcode, operation.kind, macro=macro, workspace=workspace, holds=keeps, total=total)

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
            alignments = block.aligned()
        except AbiError as error:
            raise DescriptorError(TicketError.RESERVED, f"extended block at {d.param1:#x}: {error}") from None
        for name, size in alignments.items():
            if size & size - 1 or size > max_alignment(self._config):
                raise self._alignment_error(f"alignment of {name}", size)
        if block.leftover(opcode):
            raise DescriptorError(
                TicketError.RESERVED,
                f"extended block at {d.param1:#x}: bytes that {opcode.name} does not use must be 0",
            )
        return block

    def _alignment_error(self, name: str, size: int) -> DescriptorError:
        rule = f"must be a power of two up to {max_alignment(self._config)}"
        return DescriptorError(
            TicketError.SHAPE, f"{name} {size}: {rule}, which is the least of dram.interleave and l2.line"
        )


assert all(operation.kind in (None, Kind.TE, Kind.VE, Kind.DMA) for operation in OPERATIONS.values())
