"""Which instructions are worth translating together: the hot blocks that can be reached from one place."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pyv_ext.engines.fast.machine import enables
from pyv_ext.isa import Instruction, Kind

CONTROL = (Kind.BRANCH, Kind.JUMP)
ATOMIC = (Kind.LR, Kind.SC, Kind.AMO)
TRANSLATED = (Kind.OP, Kind.LOAD, Kind.STORE, Kind.FLOAT, *CONTROL)
"""The kinds of instruction that translators always take; `ATOMIC`, and of those of machine mode what `machine` knows,
unless a sanitizer looks on; all others take the slow path."""


def ends(instruction: Instruction) -> bool:
    """Whether the next instruction may be another one than that behind it, or an interrupt may come before it."""
    kind = instruction.row.kind
    return kind in CONTROL or kind in (Kind.ECALL, Kind.MRET) or enables(instruction)


class Block(NamedTuple):
    """Instructions that execute one after the other; only the last may be one that `ends` it."""

    pc: int
    instructions: tuple[tuple[int, Instruction], ...]
    """Each with its address."""
    end: int
    """The address after the last."""


def translatable(pc: int, instruction: Instruction, mask: int, alignment: int) -> bool:
    """Whether a translator takes the instruction, as long as it has an operation for one of floating point: one of a
    direct jump that must trap takes the slow path."""
    kind = instruction.row.kind
    target = target_of(pc, instruction, mask)
    return kind in TRANSLATED and (target is None or target % alignment == 0)


def target_of(pc: int, instruction: Instruction, mask: int) -> int | None:
    """Where a branch or direct jump goes; None for all other instructions."""
    row = instruction.row
    if row.kind is Kind.BRANCH or (row.kind is Kind.JUMP and row.format.rs1 is None):
        return pc + instruction.imm & mask
    return None


def find_blocks(
    start: int,
    mask: int,
    at: Callable[[int], Instruction | None],
    takes: Callable[[int, Instruction], bool],
    hot: Callable[[int], bool],
    limit: int,
) -> list[Block]:
    """The block at `start` and all reached from it through hot addresses, of about `limit` instructions at most.

    `at` gives what is decoded at an address, `takes` whether it is translated, `hot` whether a place that a block
    may begin at is worth it. Calls are followed, and so are their return addresses.
    """
    found: dict[int, Instruction] = {}
    heads: dict[int, None] = {start: None}
    waiting = deque(heads)
    while waiting and len(found) < limit:
        pc = waiting.popleft()
        while pc not in found:
            instruction = at(pc)
            if instruction is None:
                break
            after = pc + instruction.length & mask
            control = ends(instruction)
            taken = takes(pc, instruction)
            if taken:
                found[pc] = instruction
            if control or not taken:
                for head in (target_of(pc, instruction, mask), after):
                    if head is not None and head not in heads and hot(head):
                        heads[head] = None
                        waiting.append(head)
                break
            pc = after
    return [_block(head, found, heads, mask) for head in heads if head in found]


def _block(head: int, found: dict[int, Instruction], heads: dict[int, None], mask: int) -> Block:
    instructions = []
    pc = head
    while pc in found and (pc == head or pc not in heads):
        instruction = found[pc]
        instructions.append((pc, instruction))
        pc = pc + instruction.length & mask
        if ends(instruction):
            break
    return Block(head, tuple(instructions), pc)
