"""Decode of tile commands in the native subset: a descriptor is checked and becomes operands, by the table of
`operations.tile_form` (docs/interface.md, "Descriptor" and "Errors")."""

from enum import IntEnum

from npu_device.abi.memory_map import SPM_BASE, SPM_CLUSTER_STRIDE
from npu_device.abi.opcodes import DataType, Opcode
from npu_device.decode.tile_state import (
    ACCUMULATE,
    IN1_NK,
    FormRecord,
    OpcodeRecord,
    OperandRecord,
    RuleRecord,
    TileDecoder,
)
from npu_device.operations.limits import PAD_BYTES
from npu_device.operations.tile_form import FIELDS, Broadcast, Extent, Requirement
from pyv_native.intrinsics import u32

LARGE = 1 << 60
"""Limit of products of extents; no memory is as large."""
TILE_M, TILE_N, TILE_K, PARAM0, PARAM1, TYPE_IN0, TYPE_IN1, TYPE_OUT, TYPE_KV = range(len(FIELDS))
MAX_TYPE = int(max(DataType))


class DecodeFault(IntEnum):
    """Reason why a descriptor is invalid."""

    NONE = 0
    OPCODE = 1
    RESERVED_BITS = 2
    CLUSTER = 3
    FUNCTION = 4
    OPTION = 5
    AFFINITY = 6
    BANK_MASK = 7
    TYPE = 8
    NO_TILE_FORM = 9
    RULE = 10
    ALIGNMENT = 11
    PADS = 12
    MISALIGNED = 13
    """This fault, and all that follow, concern an operand."""
    BEYOND_SPM = 14
    BANKS = 15
    NO_MEMORY = 16
    NOT_IN_SPM = 17
    NOT_IN_DRAM = 18


def product(a: int, b: int) -> int:
    """Multiply two extents, saturating at LARGE."""
    return a * b if a == 0 or b <= LARGE // a else LARGE


def row_bytes(columns: int, bits: int) -> int:
    """Return the bytes of a row."""
    return (columns * bits + 7) // 8


# -- rules -------------------------------------------------------------------------------------------------------------


def window_count(size: int, before: int, after: int, taps: int, stride: int) -> int:
    """Return the windows that fit a dimension of an image with its pads."""
    return (size + before + after - taps) // stride + 1


def sees_image(size: int, count: int, stride: int, taps: int, before: int) -> bool:
    """Check that each of `count` windows has a tap in the image."""
    return (count - 1) * stride - before < size and taps > before


def check_windows(tile: TileDecoder) -> bool:
    """Check the windows of a POOL: param0 has taps and strides, param1 the pads."""
    sizes = tile.fields[PARAM0]
    pads = tile.fields[PARAM1]
    taps_h = sizes & 0xFF
    taps_w = sizes >> 8 & 0xFF
    stride_h = sizes >> 16 & 0xFF
    stride_w = sizes >> 24
    if not taps_h or not taps_w or not stride_h or not stride_w:
        return False
    high = window_count(tile.fields[TILE_M], pads & 0xFF, pads >> 16 & 0xFF, taps_h, stride_h)
    wide = window_count(tile.fields[TILE_N], pads >> 8 & 0xFF, pads >> 24, taps_w, stride_w)
    return (
        high >= 1
        and wide >= 1
        and sees_image(tile.fields[TILE_M], high, stride_h, taps_h, pads & 0xFF)
        and sees_image(tile.fields[TILE_N], wide, stride_w, taps_w, pads >> 8 & 0xFF)
    )


def satisfies(tile: TileDecoder, rule: RuleRecord) -> bool:
    """Check a rule of the table."""
    if rule.condition >= 0 and not rule.condition_types >> tile.fields[rule.condition] & 1:
        return True
    value = tile.fields[rule.field]
    if rule.check == Requirement.TYPE:
        return rule.types >> value & 1 != 0 or (rule.other >= 0 and value == tile.fields[rule.other])
    if rule.check == Requirement.ZERO:
        return value == 0
    if rule.check == Requirement.NONZERO:
        return value != 0
    if rule.check == Requirement.LIMIT:
        return value <= rule.limit
    if rule.check == Requirement.STRIDE:
        return not 0 < value < row_bytes(tile.fields[TILE_K], tile.bits[tile.fields[rule.other]])
    if rule.check == Requirement.EVEN:
        return value % 2 == 0
    return check_windows(tile)


# -- operands ----------------------------------------------------------------------------------------------------------


def extent(tile: TileDecoder, number: int) -> int:
    """Return an extent of an operand, at most LARGE."""
    m = tile.fields[TILE_M]
    n = tile.fields[TILE_N]
    k = tile.fields[TILE_K]
    shape = tile.fields[PARAM1]
    if number == Extent.M:
        return m
    if number == Extent.N:
        return n
    if number == Extent.K:
        return k
    if number == Extent.PIXELS:
        return product(m, n)
    if number == Extent.WINDOWS:
        sizes = tile.fields[PARAM0]
        return product(
            window_count(m, shape & 0xFF, shape >> 16 & 0xFF, sizes & 0xFF, sizes >> 16 & 0xFF),
            window_count(n, shape >> 8 & 0xFF, shape >> 24, sizes >> 8 & 0xFF, sizes >> 24),
        )
    if number == Extent.BROADCAST_ROWS:
        return 1 if shape == Broadcast.ROW or shape == Broadcast.SCALAR else m
    if number == Extent.BROADCAST_COLUMNS:
        return 1 if shape == Broadcast.COLUMN or shape == Broadcast.SCALAR else n
    if number == Extent.WEIGHT_ROWS:
        return n if tile.in1_nk else k
    if number == Extent.WEIGHT_COLUMNS:
        return k if tile.in1_nk else n
    return 2 if number == Extent.TWO else 1


def within_memory(tile: TileDecoder, address: int, end: int) -> bool:
    """Check that bytes lie in one region of the memory."""
    for region in tile.regions:  # noqa: SIM110 - the subset has no generators
        if region.base <= address and end <= region.end:
            return True
    return False


def meets_scratchpad(tile: TileDecoder, address: int, end: int) -> bool:
    """Check whether some bytes are in a scratchpad."""
    for cluster in range(tile.clusters):
        base = SPM_BASE + cluster * SPM_CLUSTER_STRIDE
        if base < end and address < base + tile.spm_size:
            return True
    return False


def in_banks(tile: TileDecoder, start: int, end: int) -> bool:
    """Check that bytes of a scratchpad lie in the banks of the mask."""
    allowed = tile.named_banks[tile.bank_mask]
    limit = min(end, start + tile.banks * tile.bank_unit)
    at = start
    while at < limit:
        if not allowed >> (at // tile.bank_unit % tile.banks) & 1:
            return False
        at = at - at % tile.bank_unit + tile.bank_unit
    return True


def check_place(tile: TileDecoder, address: int, end: int, in_dram: int) -> int:
    """Check that an operand is in the scratchpad of its cluster, or in DRAM."""
    base = SPM_BASE + tile.cluster * SPM_CLUSTER_STRIDE
    top = base + tile.spm_size
    if base <= address < top and not in_dram:
        if end > top:
            return DecodeFault.BEYOND_SPM
        if tile.bank_mask and not in_banks(tile, address - base, end - base):
            return DecodeFault.BANKS
        return DecodeFault.NONE
    if not within_memory(tile, address, end):
        return DecodeFault.NO_MEMORY
    if not in_dram:
        return DecodeFault.NOT_IN_SPM
    return DecodeFault.NOT_IN_DRAM if meets_scratchpad(tile, address, end) else DecodeFault.NONE


def add_operand(tile: TileDecoder, form: OperandRecord, alignment: int) -> int:
    """Check an operand, and append its words. `alignment`: of a move, own or of the device."""
    bits = tile.bits[tile.fields[form.type]]
    address = tile.words[form.word]
    rows = extent(tile, form.rows)
    size = row_bytes(extent(tile, form.columns), bits)
    stride = tile.fields[form.stride] if form.stride >= 0 else 0
    if rows == 1 or stride == 0 or stride == size:
        size = product(rows, size)
        rows = 1
        stride = size
    if bits > 8 and (address % (bits // 8) or stride % (bits // 8)):
        return DecodeFault.MISALIGNED
    if not 0 <= address < LARGE:
        return DecodeFault.NO_MEMORY
    end = address + min(LARGE, product(rows - 1, stride) + size)
    fault = check_place(tile, address, end, form.in_dram)
    if fault:
        return fault
    tile.operands.extend((address, end, size, stride if rows > 1 else 0, form.written))
    tile.key[form.word + 3] = address & tile.place_mask
    if form.in_dram:
        tile.dram = address
        tile.key[form.word + 3] = address % max(tile.channel_turn, alignment)
    return DecodeFault.NONE


# -- descriptors -------------------------------------------------------------------------------------------------------


def check_header(tile: TileDecoder) -> int:
    """Unpack the descriptor and check the fields that all commands have. Return a fault, or NONE."""
    op = u32(tile.words[0])
    flags = u32(tile.words[0] >> 32)
    tile.opcode = op & 0xFF
    tile.macro = op >> 15 & 1 != 0 and tile.opcode != Opcode.CORE  # whose block is for firmware
    tile.affinity = op >> 26 & 0xF
    tile.cluster = (op >> 8 & 3) << 2 | op >> 30
    tile.bank_mask = flags >> 8 & 0xFF
    tile.accumulate = flags >> 22 & 1
    tile.in1_nk = flags >> 23 & 1
    tile.function = flags >> 24
    types = u32(tile.words[5] >> 32)
    tile.fields[TILE_M] = u32(tile.words[4])
    tile.fields[TILE_N] = u32(tile.words[4] >> 32)
    tile.fields[TILE_K] = u32(tile.words[5])
    tile.fields[PARAM0] = u32(tile.words[6])
    tile.fields[PARAM1] = u32(tile.words[6] >> 32)
    tile.fields[TYPE_IN0] = types & 0xFF
    tile.fields[TYPE_IN1] = types >> 8 & 0xFF
    tile.fields[TYPE_OUT] = types >> 16 & 0xFF
    tile.fields[TYPE_KV] = types >> 24
    if tile.opcode >= len(tile.opcodes):
        return DecodeFault.OPCODE
    opcode = tile.opcodes[tile.opcode]
    if op >> 10 & 0x1F:
        return DecodeFault.RESERVED_BITS
    if tile.cluster >= tile.clusters:
        return DecodeFault.CLUSTER
    if not opcode.functions >> tile.function & 1:
        return DecodeFault.FUNCTION
    options = (ACCUMULATE if tile.accumulate else 0) | (IN1_NK if tile.in1_nk else 0)
    if options & ~opcode.options:
        return DecodeFault.OPTION
    if tile.affinity > opcode.units:
        return DecodeFault.AFFINITY
    if tile.bank_mask and not tile.named_banks[tile.bank_mask]:
        return DecodeFault.BANK_MASK
    for field in range(TYPE_IN0, TYPE_KV + 1):
        if tile.fields[field] > MAX_TYPE:
            return DecodeFault.TYPE
    return DecodeFault.NONE


def check_pads(tile: TileDecoder) -> bool:
    """Check the bytes of the pads of a POOL, whose image is in the scratchpad."""
    m = tile.fields[TILE_M]
    n = tile.fields[TILE_N]
    pads = tile.fields[PARAM1]
    high = m + (pads & 0xFF) + (pads >> 16 & 0xFF)
    wide = n + (pads >> 8 & 0xFF) + (pads >> 24)
    return (high * wide - m * n) * tile.fields[TILE_K] * PAD_BYTES <= tile.pad_bytes


def check_tile(tile: TileDecoder, opcode: OpcodeRecord, form: FormRecord) -> int:
    """Check rules and operands of a tile command; a fault, or NONE."""
    for index in range(form.first_rule, form.rules_end):
        if not satisfies(tile, tile.rules[index]):
            tile.detail = index
            return DecodeFault.RULE
    alignment = tile.alignment
    if opcode.aligning and tile.fields[TILE_N]:
        alignment = tile.fields[TILE_N]
        if alignment & alignment - 1 or alignment > tile.max_alignment:
            return DecodeFault.ALIGNMENT
    for index in range(form.first_operand, form.operands_end):
        fault = add_operand(tile, tile.form_operands[index], alignment)
        if fault:
            tile.detail = index - form.first_operand
            return fault
    if tile.opcode == Opcode.POOL and not check_pads(tile):
        return DecodeFault.PADS
    return DecodeFault.NONE


def decode_tile(tile: TileDecoder) -> int:
    """Decode the descriptor in `words`, of a macro form only the header. Return a fault, or NONE."""
    fault = check_header(tile)
    if fault or tile.macro:
        return fault
    opcode = tile.opcodes[tile.opcode]
    if not opcode.forms:
        return DecodeFault.NO_TILE_FORM
    tile.operands.clear()
    tile.dram = 0
    tile.key[0] = tile.opcode | tile.function << 8 | tile.in1_nk << 16
    for index in range(3):
        tile.key[1 + index] = tile.words[4 + index]
        tile.key[4 + index] = 0
    tile.unit_class = opcode.first_class + tile.affinity
    if opcode.kind:
        tile.unit_class += tile.cluster * (1 + opcode.units)
    return check_tile(tile, opcode, tile.forms[opcode.first_form + tile.function])
