"""Serialisation of commands in flight.

A snapshot has the descriptor bytes of a command, its progress, and its results that are not in memory yet. Restoring
decodes the descriptor again, and recomputes hazards from the earlier commands.
"""

from typing import Any, NamedTuple

import numpy as np

from npu_device.abi import DESCRIPTOR_SIZE, EXTENDED_SIZE
from npu_device.abi.errors import TicketError
from npu_device.decode.command import Command
from npu_device.decode.decoder import Decoder
from npu_device.issue.station import EntryState
from npu_device.memory.arrays import Bytes, WriteSet
from npu_device.memory.memory import Memory
from npu_device.memory.region import Region
from npu_device.operations.checks import DescriptorError
from npu_device.reservation.state import ENDED, RUNNING, SCOPES, STREAMS, WAITING
from npu_device.reservation.sums import Accumulators
from npu_device.reservation.tickets import MODULUS
from pyv_native.state import LATEST, WORD32, WORD64, Fields, StateError, data, inside, quote, row, sequence

STAGES = "waiting", "running", "ended"
"""Names of WAITING, RUNNING and ENDED."""

_FIELDS = (
    "descriptor", "block", "stream", "prio", "ticket", "number", "status_address", "accepted", "hazards_clear",
    "gates_clear", "unit", "stage", "position", "sum", "failure", "writes", "accumulated", "epochs",
)  # fmt: skip


class InFlight(NamedTuple):
    """Restored command."""

    command: Command
    entry: EntryState


def state_of(
    command: Command, entry: Any, result: WriteSet | None, epochs: list[int], sums: Accumulators
) -> dict[str, Any]:
    """Return a command and its entry as plain data. `result`: its outputs that are not in memory."""
    macro, failure = command.macro, command.failure
    return {
        "descriptor": command.descriptor.pack(),
        "block": None if macro is None else macro.block.pack(),
        "stream": command.stream,
        "prio": command.prio,
        "ticket": command.ticket,
        "number": command.number,
        "status_address": command.status_address,
        "accepted": entry.acceptance_cycle,
        "hazards_clear": entry.hazards_clear,
        "gates_clear": entry.barriers_clear,
        "unit": entry.unit,
        "stage": STAGES[entry.stage],
        "position": None if macro is None else macro.position,
        "sum": sums.saved_regions(command),
        "failure": None if failure is None else [int(failure.code), failure.reason],
        "writes": None if result is None else [[[*region], content.tobytes()] for region, content in result.writes],
        "accumulated": None if result is None or result.accumulator is None else result.accumulator.tobytes(),
        "epochs": epochs,
    }


def command_of(state: Any, decoder: Decoder, sums: Accumulators, memory: Memory, values: bool) -> InFlight:
    """Restore a command from plain data. `values`: whether this device computes results. Raise StateError."""
    fields = Fields(state, *_FIELDS)
    block = None if fields["block"] is None else fields.data("block", EXTENDED_SIZE)
    prio, stream = fields.integer("prio", 0, 15), fields.integer("stream", 0, STREAMS - 1)
    command = decoder.restore(fields.data("descriptor", DESCRIPTOR_SIZE), block, prio, stream)
    with inside("sum"):
        sums.rebind(command, fields["sum"])
    d = command.descriptor
    if stream != (d.stream or stream) or prio != (d.prio or prio):
        raise StateError("is not what the descriptor says", "stream")
    if command.kind is not None:
        command.unit_class = (command.kind, d.cluster, command.affinity)
    command.ticket = fields.integer("ticket", 1, MODULUS - 1)
    command.number = fields.integer("number", 1, LATEST)
    accepted, hazards_clear, barriers_clear = (
        fields.integer(name, 0, LATEST) for name in ("accepted", "hazards_clear", "gates_clear")
    )
    for name in ("hazards_clear", "gates_clear"):
        if fields[name] < accepted:
            raise StateError("is earlier than its acceptance", name)
    command.unit = fields.integer("unit", 0, WORD32 >> 16)
    command.status_address = fields.optional("status_address", 0, WORD64)
    if command.status_address is not None and not memory.holds(command.status_address, 2 * 4):
        raise StateError(f"{command.status_address:#x} is not in memory", "status_address")
    name = fields.text("stage")
    if name not in STAGES:
        raise StateError(f"{quote(name)} is none", "stage")
    stage = STAGES.index(name)
    if fields["position"] is not None:
        _load_position(command, fields.integer("position", 0, WORD32), stage, memory)
    if fields["failure"] is not None:
        _load_failure(command, fields.sequence("failure", 2), stage)
    command.result = _load_results(command, fields, stage, memory, values)
    entry = EntryState(stage, accepted, hazards_clear, barriers_clear, fields.integers("epochs", 0, LATEST, SCOPES))
    return InFlight(command, entry)


def _load_position(command: Command, position: int, stage: int, memory: Memory) -> None:
    word = np.frombuffer(position.to_bytes(4, "little"), np.uint8)
    operands = () if command.macro is None else command.macro.operands
    regions = {part.region for part in operands if part.name == "pos_addr"}

    def read(region: Region) -> Bytes:
        """Return the sampled position, or memory for all else, which has not changed since the start."""
        return word if region in regions else memory.rows(region)

    try:
        macro = None if command.macro is None else command.macro.start(read)
    except DescriptorError as error:
        raise StateError(str(error), "position") from None
    if macro is None or macro.position is None or stage == WAITING:
        raise StateError("is none that the command has read", "position")
    command.macro = macro


def _load_failure(command: Command, failure: list[Any], stage: int) -> None:
    code, reason = failure
    if code not in list(TicketError) or type(reason) is not str or stage != ENDED:
        raise StateError("is no error of a command that has ended", "failure")
    command.failure = DescriptorError.of(TicketError(code), reason)


def _load_results(command: Command, fields: Fields, stage: int, memory: Memory, values: bool) -> WriteSet | None:
    """Return the pending outputs and the accumulator of a started command. Raise StateError."""
    computed = values and stage == RUNNING
    if fields["writes"] is None:
        if computed:
            raise StateError("is missing, the command runs", "writes")
        return None
    if not values or stage == WAITING:
        raise StateError("there is none yet", "writes")
    outputs = []
    for index, item in enumerate(fields.sequence("writes")):
        with inside("writes", index):
            bounds, content = sequence(item, 2)
            size = (1, WORD32)
            region = Region(*row(bounds, (0, WORD64), size, size, size))
            if region.end > WORD64 or not memory.holds(region.address, region.end - region.address):
                raise StateError(f"{region.address:#x}..{region.end:#x} is not in memory")
            content = np.frombuffer(data(content, region.payload), np.uint8)
            outputs.append((region, content.reshape(region.rows, region.row_bytes)))
    writes = tuple(outputs)
    total, keeps = command.order.total, computed and command.order.holds
    if (fields["accumulated"] is not None) != keeps:
        raise StateError("does not fit what the command does", "accumulated")
    accumulated = None
    if total is not None and keeps:
        content = np.frombuffer(fields.data("accumulated", total.size), np.int32 if total.integer else np.float32)
        accumulated = content.reshape(total.shape)
    return WriteSet(writes, accumulated)
