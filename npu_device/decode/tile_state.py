"""Records of the decoder of tile commands (`pyv_native`): the table of `operations.tile_form`, limits of the device,
and the descriptor that is decoded."""

from collections.abc import Iterable, Sequence
from struct import pack
from typing import Any, NamedTuple

from npu_device.abi import DESCRIPTOR_SIZE
from npu_device.abi.memory_map import MAX_CLUSTERS
from npu_device.abi.opcodes import BITS, FUNCTIONS, DataType, Opcode
from npu_device.config import NpuConfig
from npu_device.decode.banks import BANK_MASKS, Banks
from npu_device.memory.memory import Memory
from npu_device.memory.region import OPERAND_WORDS
from npu_device.operations.tile_form import ALIGNING, FIELDS, OPERATIONS, OperandForm, Rule, TileForm
from npu_device.trace.events import Kind, unit_counts
from pyv_native.intrinsics import address_of
from pyv_native.records import WORD, array, items, record, records

DESCRIPTOR_WORDS = DESCRIPTOR_SIZE // 8
MAX_REGIONS = MAX_CLUSTERS + 4
"""Regions of the memory."""
MAX_OPERAND_WORDS = 4 * OPERAND_WORDS
"""Words of the operands of a command in tile form, at most."""
KEY_WORDS = 7
ADDRESS_IN0, ADDRESS_IN1, ADDRESS_OUT = 1, 2, 3
ADDRESSES = {"in0": ADDRESS_IN0, "in1": ADDRESS_IN1, "out": ADDRESS_OUT}
"""Words of a descriptor."""
ACCUMULATE, IN1_NK = 1, 2
"""Option flags of an opcode."""
_OPTIONS = {"accumulate": ACCUMULATE, "in1_nk": IN1_NK}

_NONE = -1


@record
class MemoryRegion:
    """Region of the memory."""

    base: int = 0
    end: int = 0
    data: int = 0
    """Host address of its first byte."""


@record
class OpcodeRecord:
    """`Operation` of an opcode."""

    kind: int = 0
    """Kind of its unit; 0: none."""
    units: int = 0
    """Units of a cluster."""
    first_class: int = 0
    """First class of its units. Each cluster has 1 + `units` classes: any unit, then each unit alone (affinity)."""
    functions: int = 0
    """Bit f is set when there is a function f."""
    first_form: int = 0
    """Index of the form of function 0; those of the others follow."""
    forms: int = 0
    """Whether it has a tile form."""
    options: int = 0
    aligning: int = 0
    """Whether tile_n is an alignment."""


@record
class FormRecord:
    """`TileForm`: its part of the rules, and of the operands."""

    first_rule: int = 0
    rules_end: int = 0
    first_operand: int = 0
    operands_end: int = 0


@record
class RuleRecord:
    """`Rule`. Fields are indices of `FIELDS`."""

    check: int = 0
    field: int = 0
    types: int = 0
    """Bit t is set for type t."""
    other: int = _NONE
    limit: int = 0
    condition: int = _NONE
    condition_types: int = 0


@record
class OperandRecord:
    """`OperandForm`."""

    word: int = 0
    """Word of its address in a descriptor."""
    rows: int = 0
    columns: int = 0
    type: int = 0
    stride: int = _NONE
    in_dram: int = 0
    written: int = 0


@record
class TileDecoder:
    """Decoder of a device, and the descriptor that it has decoded last."""

    words: list[int] = array(DESCRIPTOR_WORDS)
    """The descriptor."""
    fields: list[int] = array(len(FIELDS))
    opcode: int = 0
    function: int = 0
    cluster: int = 0
    affinity: int = 0
    bank_mask: int = 0
    in1_nk: int = 0
    accumulate: int = 0
    macro: bool = False
    """Whether it has an extended block, which this decoder does not read."""
    detail: int = 0
    """Index of the rule of a fault, or of the operand in its form."""
    unit_class: int = 0
    dram: int = 0
    """DRAM address at which its transfer begins."""
    operands: list[int] = items(MAX_OPERAND_WORDS)
    """Words of the operands that it reads, then of those that it writes, without sums in accumulators."""
    key: list[int] = array(KEY_WORDS)
    """Key of the work of its unit in the table of `reservation.pieces`."""

    opcodes: list[OpcodeRecord] = records()
    forms: list[FormRecord] = records()
    rules: list[RuleRecord] = records()
    form_operands: list[OperandRecord] = records()
    bits: list[int] = items()
    """Bits of an element of each type."""
    named_banks: list[int] = items()
    """Banks of each mask: bit b for bank b."""
    regions: list[MemoryRegion] = records()
    clusters: int = 1
    spm_size: int = 0
    banks: int = 1
    bank_unit: int = 1
    """Consecutive bytes of a bank."""
    max_alignment: int = 0
    pad_bytes: int = 0
    """Limit of the pads of a command."""
    place_mask: int = 0
    """Bits of scratchpad addresses on which the work depends: all if ports of banks are limited, else none."""
    channel_turn: int = 0
    """Period of the interleaving of DRAM channels in bytes."""
    alignment: int = 0
    """Alignment of accesses to DRAM."""


class _Table(NamedTuple):
    """Rows of the records of all opcodes, in the order of their fields."""

    first_form: dict[Opcode, int]
    """Index of the form of function 0."""
    forms: list[tuple[int, ...]]
    rules: list[Rule]
    operands: list[tuple[int, ...]]


def _table() -> _Table:
    table, rows = _Table({}, [], [], []), dict[tuple[TileForm, str], tuple[int, ...]]()
    for opcode, operation in OPERATIONS.items():
        table.first_form[opcode] = len(table.forms)
        assert list(operation.forms) in ([], list(range(len(operation.forms)))), "functions count from 0"
        for form in operation.forms.values():
            if (form, operation.in_dram) not in rows:
                rule, first = len(table.rules), len(table.operands)
                table.rules.extend(form.rules)
                table.operands.extend(_operand_row(operand, form, operation.in_dram) for operand in form.operands)
                rows[form, operation.in_dram] = rule, len(table.rules), first, len(table.operands)
            table.forms.append(rows[form, operation.in_dram])
    return table


def _operand_row(operand: OperandForm, form: TileForm, in_dram: str) -> tuple[int, ...]:
    return (
        ADDRESSES[operand.name], operand.rows, operand.columns, FIELDS.index(operand.type), _index(operand.stride),
        operand.name == in_dram, operand is form.operands[-1],
    )  # fmt: skip


def _rule_row(rule: Rule) -> tuple[int, ...]:
    return (
        rule.check, FIELDS.index(rule.field), _mask(rule.types), _index(rule.other), rule.limit,
        _index(rule.condition), _mask(rule.condition_types),
    )  # fmt: skip


def _mask(types: Iterable[DataType]) -> int:
    return sum(1 << kind for kind in types)


def _index(field: str) -> int:
    return FIELDS.index(field) if field else _NONE


_TABLE = _table()
RULES = tuple(_TABLE.rules)
CAPACITIES = {
    "opcodes": len(OPERATIONS), "forms": len(_TABLE.forms),
    "rules": len(RULES), "form_operands": len(_TABLE.operands), "bits": 1 + max(DataType), "named_banks": BANK_MASKS,
    "regions": MAX_REGIONS,
}  # fmt: skip
"""Capacities of the lists of a `TileDecoder`."""


def fill_decoder(tile: Any, config: NpuConfig) -> None:
    """Fill the view of a decoder with the table and the limits of a device."""
    counts, classes = unit_counts(config), 1
    first_class: dict[Kind | None, int] = {None: 0}
    for kind, count in counts.items():
        first_class[kind] = classes
        classes += config.clusters * (1 + count)
    opcodes = [
        (
            operation.kind or 0, 0 if operation.kind is None else counts[operation.kind], first_class[operation.kind],
            sum(1 << int(function) for function in FUNCTIONS.get(opcode, (0,))), _TABLE.first_form[opcode],
            bool(operation.forms), sum(_OPTIONS[option] for option in operation.options), opcode in ALIGNING,
        )
        for opcode, operation in sorted(OPERATIONS.items())
    ]  # fmt: skip
    _fill(tile.opcodes, opcodes)
    _fill(tile.forms, _TABLE.forms)
    _fill(tile.rules, [_rule_row(rule) for rule in RULES])
    _fill(tile.form_operands, _TABLE.operands)
    tile.bits.fill(BITS.get(kind, 0) for kind in DataType)
    banks, dram = Banks(config.spm), config.dram
    tile.named_banks.fill(banks.by_mask)
    tile.clusters, tile.spm_size, tile.banks, tile.bank_unit = config.clusters, config.spm.size, banks.count, banks.unit
    tile.max_alignment, tile.pad_bytes = max_alignment(config), config.limits.pad_bytes
    tile.place_mask = 0 if config.spm.port is None else -1
    tile.channel_turn = 1 if dram.channels == 1 else dram.channels * dram.interleave
    tile.alignment = config.dma.alignment


def _fill(records: Any, rows: Sequence[tuple[int, ...]]) -> None:
    """Fill the view of a list of records whose fields are words."""
    words = [word for row in rows for word in row]
    records.resize(len(rows))
    records.reserved()[: WORD * len(words)] = pack(f"<{len(words)}q", *words)


def add_regions(tile: Any, memory: Memory) -> None:
    """Register the regions of a memory with a decoder."""
    for base, end, content in memory.windows:
        region = tile.regions.add()
        region.base, region.end, region.data = base, end, address_of(content)


def max_alignment(config: NpuConfig) -> int:
    """Return the largest alignment of an access: it is on one DRAM channel, and made of whole lines of the L2."""
    interleave = config.dram.interleave
    return min(interleave, config.l2.line) if config.l2.enabled else interleave
