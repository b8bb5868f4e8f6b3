"""Selection of blocks for a translation: the hot blocks reachable from an address, and their accesses by group."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pyv_ext.hart.csr import REGISTERS
from pyv_ext.isa import Instruction, OpClass
from pyv_ext.isa.row import InstructionDef
from pyv_ext.machine.csr import MENVCFG, MENVCFGH, MIDELEG, MIE, MIP, MSTATUS, PMPADDR, PMPCFG, SIE, SIP, SSTATUS
from pyv_ext.machine.state import ENTRIES, LINE

CONTROL = (OpClass.BRANCH, OpClass.JUMP)
ATOMIC = (OpClass.LR, OpClass.SC, OpClass.AMO)
TRANSLATED = (OpClass.OP, OpClass.LOAD, OpClass.STORE, OpClass.FLOAT, *CONTROL)
"""Op classes that translators support; `ATOMIC` and `SYSTEM`, too, unless a sanitizer is attached; all others take the
slow path."""
SYSTEM = (OpClass.CSR_WRITE, OpClass.CSR_UPDATE, OpClass.ECALL, OpClass.XRET)


_ENABLES = (MSTATUS, MIE, SSTATUS, SIE, SIP, MIP, MIDELEG, MENVCFG, MENVCFGH)
"""Registers that decide whether an interrupt is taken."""


def ends_block(instruction: Instruction) -> bool:
    """Check whether an instruction ends its block: control may leave the sequence after it, or its cycles are
    unknown."""
    row = instruction.row
    is_jump = row.op_class in CONTROL or row.op_class in (OpClass.ECALL, OpClass.XRET)
    return is_jump or bool(row.extra) or changes_interrupts(instruction)


def accesses_csr(instruction: Instruction) -> bool:
    """Check whether an instruction accesses a CSR of the hart, not of a window."""
    return instruction.row.op_class in (OpClass.CSR_WRITE, OpClass.CSR_UPDATE) and instruction.csr in REGISTERS


def changes_interrupts(instruction: Instruction) -> bool:
    """Check whether a CSR write may enable an interrupt right after the instruction, or change PMP."""
    address = instruction.csr
    protects = PMPCFG <= address < PMPADDR + ENTRIES
    return accesses_csr(instruction) and instruction.writes_csr and (address in _ENABLES or protects)


class BasicBlock(NamedTuple):
    """Basic block: instructions in sequence; only the last may satisfy `ends_block`."""

    pc: int
    instructions: tuple[tuple[int, Instruction], ...]
    """Instructions with their addresses."""
    end: int
    """Address after the last instruction."""


BlockWords = tuple[int, int, Sequence[int]]
"""A block: its address, the address after its last instruction, and the words of its instructions."""


def targets_misaligned(instruction: Instruction, alignment: int) -> bool:
    """Check for a branch or direct jump to a misaligned target, which traps on the slow path."""
    return is_direct(instruction.row) and instruction.imm % alignment != 0


def target_of(pc: int, instruction: Instruction, mask: int) -> int | None:
    """Return the target of a branch or direct jump; None for all other instructions."""
    return pc + instruction.imm & mask if is_direct(instruction.row) else None


def is_direct(row: InstructionDef) -> bool:
    """Check whether a row jumps to its own address plus a constant."""
    return row.op_class is OpClass.BRANCH or (row.op_class is OpClass.JUMP and row.format.rs1 is None)


def find_blocks(
    start: int,
    mask: int,
    decode: Callable[[int], Instruction | None],
    is_translated: Callable[[int, Instruction], bool],
    is_hot: Callable[[int], bool],
    limit: int,
) -> list[BasicBlock]:
    """Find the block at `start` and the blocks reachable from it through hot addresses, of up to `limit` instructions.

    `decode` returns the instruction at an address, `is_translated` whether it is translated, `is_hot` whether a block
    at an address is hot. Calls and their return addresses are followed.
    """
    decoded: dict[int, Instruction] = {}
    heads: dict[int, None] = {start: None}
    worklist = deque(heads)
    while worklist and len(decoded) < limit:
        pc = worklist.popleft()
        while pc not in decoded:
            instruction = decode(pc)
            if instruction is None:
                break
            next_pc = pc + instruction.length & mask
            control = ends_block(instruction)
            translated = is_translated(pc, instruction)
            if translated:
                decoded[pc] = instruction
            if control or not translated:
                for head in (target_of(pc, instruction, mask), next_pc):
                    if head is not None and head not in heads and is_hot(head):
                        heads[head] = None
                        worklist.append(head)
                break
            pc = next_pc
    return [_block(head, decoded, heads, mask) for head in heads if head in decoded]


# -- groups of accesses -------------------------------------------------------------------------------------------

MAX_GROUP_SPAN = 1 << 11
"""Maximum distance in bytes of accesses that are checked together."""
MAX_PROBES = 3
"""Maximum lines that are checked at once for code; stores of a group with more are checked one by one."""


class AccessGroup(NamedTuple):
    """Group of accesses at fixed distances, which have the same size if they must be aligned."""

    size: int
    """Alignment: their size, or 1."""
    bytes: int
    """Bytes from the first byte of the lowest access to the last byte of the highest."""
    lines: tuple[int, ...]
    """Offsets from the lowest access of bytes in the lines of the stores; empty if each store is checked by itself."""
    checked: bool
    """Whether the check of the group covers its stores."""
    op_class: OpClass
    """LOAD or STORE if all accesses are of this class, else AMO."""


class BlockAccess(NamedTuple):
    """Load or store of a block."""

    base: int | None
    """Index of its group; None if its address is constant."""
    offset: int
    """Offset from the lowest address of the group, or the constant address."""
    group_distance: int = 0
    """Distance from the address of the access to the lowest of the group, 0 or negative."""


def accesses(
    block: BasicBlock, mask: int, *, misaligned: bool = False
) -> tuple[dict[int, BlockAccess], list[AccessGroup]]:
    """Return the loads and stores of a block, by index in it, and their groups. A group is checked at its first access,
    where the addresses of all its accesses are available. `misaligned`: accesses need not be aligned."""
    values: dict[int, tuple[object, int]] = {0: (None, 0)}
    positions: dict[int, tuple[int | None, int]] = {}
    groups: list[list[tuple[int, Instruction]]] = []
    open_groups: dict[tuple[object, int, int], int] = {}
    for index, (pc, instruction) in enumerate(block.instructions):
        op_class = instruction.row.op_class
        name = instruction.row.expr if op_class is OpClass.OP else ""
        root, offset = values.setdefault(instruction.rs1, (("register", instruction.rs1), 0))
        if op_class is OpClass.LOAD or op_class is OpClass.STORE:
            offset += instruction.imm
            if root is None:
                positions[index] = None, offset & mask
            else:
                size = 1 if misaligned else instruction.row.size
                key = root, size, offset % size
                number = open_groups.get(key, -1)
                if number >= 0:
                    offsets = [position for position, _ in groups[number]] + [offset]
                    number = number if max(offsets) - min(offsets) < MAX_GROUP_SPAN else -1
                if number < 0:
                    number = open_groups[key] = len(groups)
                    groups.append([])
                groups[number].append((offset, instruction))
                positions[index] = number, offset
        if op_class is OpClass.STORE or not instruction.rd:
            continue
        if name == _ADD and not instruction.row.format.rs2:
            values[instruction.rd] = root, offset + instruction.imm
        elif name == _ADD and 0 in (instruction.rs1, instruction.rs2):
            source = instruction.rs1 or instruction.rs2
            values[instruction.rd] = values.setdefault(source, (("register", source), 0))
        elif name == _LUI:
            values[instruction.rd] = None, instruction.imm
        elif name == _AUIPC:
            values[instruction.rd] = None, pc + instruction.imm
        else:
            values[instruction.rd] = ("result", index), 0
    bases = [min(offset for offset, _ in group) for group in groups]
    result: dict[int, BlockAccess] = {}
    for index, (group_id, offset) in positions.items():
        if group_id is None:
            result[index] = BlockAccess(None, offset)
        else:
            result[index] = BlockAccess(group_id, offset - bases[group_id], bases[group_id] - offset)
    return result, [_group(group, low, misaligned) for group, low in zip(groups, bases, strict=True)]


_ADD, _LUI, _AUIPC = "(a + b) & M", "b & M", "(pc + b) & M"
"""The expressions of ADD and ADDI, LUI, AUIPC."""


def _group(group: Sequence[tuple[int, Instruction]], low: int, misaligned: bool) -> AccessGroup:
    parts = [(offset - low, instruction.row.size, instruction.row.op_class) for offset, instruction in group]
    stores = [(start, size) for start, size, op_class in parts if op_class is OpClass.STORE]
    lines: tuple[int, ...] = ()
    if stores:
        last = max(start + (size - 1 if misaligned else 0) for start, size in stores)
        lines = (*range(min(stores)[0], last, LINE), last)
    probed = len(lines) <= MAX_PROBES
    kinds = {op_class for _, _, op_class in parts}
    op_class = kinds.pop() if len(kinds) == 1 else OpClass.AMO
    size = 1 if misaligned else group[0][1].row.size
    return AccessGroup(size, max(start + size for start, size, _ in parts), lines if probed else (), probed, op_class)


def _block(head: int, decoded: dict[int, Instruction], heads: dict[int, None], mask: int) -> BasicBlock:
    instructions = []
    pc = head
    while pc in decoded and (pc == head or pc not in heads):
        instruction = decoded[pc]
        instructions.append((pc, instruction))
        pc = pc + instruction.length & mask
        if ends_block(instruction):
            break
    return BasicBlock(head, tuple(instructions), pc)


def words_of(content: bytes) -> list[int]:
    """Split consecutive instructions into their words."""
    words, offset = [], 0
    while offset < len(content):
        length = 4 if content[offset] & 3 == 3 else 2
        words.append(int.from_bytes(content[offset : offset + length], "little"))
        offset += length
    return words


def addresses_of(blocks: Iterable[BlockWords]) -> Iterator[int]:
    """Yield the addresses of all instructions."""
    for pc, _, words in blocks:
        address = pc
        for word in words:
            yield address
            address += 4 if word & 3 == 3 else 2
