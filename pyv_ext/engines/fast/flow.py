"""Control and data flow among blocks: loops, targets of returns, and live-in registers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyv_ext.engines.fast.blocks import CONTROL, Block, ends, target_of
from pyv_ext.isa import Kind

# -- loops ---------------------------------------------------------------------------------------------------------

LOOP_BLOCKS, LOOP_SIZE = 12, 400
"""Blocks and instructions that a loop has at most."""
LOOP_REGISTERS = 12
"""Registers from block to block that the host has room for."""


class Handed(NamedTuple):
    """Live-in registers of blocks, which their predecessors pass as values, so that they need not be in memory
    between."""

    sources: frozenset[int]
    """The heads of the others; of a loop, these are the blocks themselves."""
    registers: tuple[int, ...]
    unsaved: frozenset[int]
    """Of these, what memory may not have."""


NOTHING = Handed(frozenset(), (), frozenset())


def loops(blocks: Sequence[Block], mask: int) -> list[Handed]:
    """Find the innermost loops among blocks that lead to each other without calls."""
    inside = {block.pc: block for block in blocks if _goes_on(block)}
    edges = {head: [pc for pc in _successors(block, mask) if pc in inside] for head, block in inside.items()}
    backward = sorted(
        (source - target, target, source) for source in edges for target in edges[source] if target <= source
    )
    found: list[Handed] = []
    taken: set[int] = set()
    for _, first, last in backward:
        within = {head: [pc for pc in edges[head] if first <= pc <= last] for head in edges if first <= head <= last}
        back: dict[int, list[int]] = {}
        for head, targets in within.items():
            for target in targets:
                back.setdefault(target, []).append(head)
        heads = _reached(first, within) & _reached(last, back)
        size = sum(len(inside[head].instructions) for head in heads)
        if heads.isdisjoint(taken) and len(heads) <= LOOP_BLOCKS and size <= LOOP_SIZE:
            taken |= heads
            found.append(_loop([inside[head] for head in sorted(heads)]))
    return found


def _goes_on(block: Block) -> bool:
    """Check whether the successors of a block are known, and it ends in no call."""
    last = block.instructions[-1][1]
    jump = last.row.kind is Kind.JUMP and not last.rd and not last.rs1
    return not ends(last) or bool(last.row.extra) or last.row.kind is Kind.BRANCH or jump


def _successors(block: Block, mask: int) -> list[int]:
    pc, last = block.instructions[-1]
    target = target_of(pc, last, mask)
    return [*(() if target is None else (target,)), *(() if last.row.kind is Kind.JUMP else (block.end,))]


def _reached(start: int, edges: Mapping[int, Sequence[int]]) -> set[int]:
    reached, waiting = {start}, [start]
    while waiting:
        for each in edges.get(waiting.pop(), ()):
            if each not in reached:
                reached.add(each)
                waiting.append(each)
    return reached


def _loop(blocks: Sequence[Block]) -> Handed:
    """Return the loop-carried registers. If there are too many, only upward-exposed reads are kept."""
    uses = [_uses(block) for block in blocks]
    written = frozenset().union(*(each.written for each in uses))
    registers = written.union(*(each.read for each in uses))
    if len(registers) > LOOP_REGISTERS:
        registers = frozenset().union(*(each.before for each in uses))
    return Handed(frozenset(block.pc for block in blocks), tuple(sorted(registers)), written & registers)


# -- what blocks hand on -------------------------------------------------------------------------------------------

ROOM = 8
"""Registers of a loop that hands them on to the blocks behind it, too; where it has more, they take the place of others
in the loop."""


def handed(blocks: Sequence[Block], points: Mapping[int, Sequence[int]], mask: int) -> dict[int, Handed]:
    """Return the live-in registers of blocks by their heads: those of a loop from each other, others from their only
    predecessor. `points`: targets of returns (see `returns`)."""
    inside = {block.pc: block for block in blocks}
    found = {head: loop for loop in loops(blocks, mask) for head in loop.sources}
    within = set(found)
    uses = {head: _uses(block) for head, block in inside.items()}
    source_of = _only_sources(inside, points, mask)
    wanted: dict[int, frozenset[int]] = {}
    for head in reversed(inside):
        own = uses[head].read | uses[head].written
        more = own.union(*(wanted[each] for each, source in source_of.items() if source == head))
        wanted[head] = more if len(more) <= LOOP_REGISTERS else own
    for head, source in source_of.items():
        given = found.get(source, NOTHING)
        if head in found or (source in within and len(given.registers) > ROOM):
            continue
        known = uses[source].read | uses[source].written | frozenset(given.registers)
        registers = wanted[head] & known
        if len(registers) > LOOP_REGISTERS:
            registers = uses[head].before & known
        unsaved = registers & (uses[source].written | given.unsaved)
        found[head] = Handed(frozenset((source,)), tuple(sorted(registers)), unsaved)
    return found


def _only_sources(inside: Mapping[int, Block], points: Mapping[int, Sequence[int]], mask: int) -> dict[int, int]:
    """Return the only predecessor of each block that has one, if it is earlier in order, by head."""
    sources: dict[int, list[int]] = {}
    for head, block in inside.items():
        last = block.instructions[-1][1]
        if not ends(last) or last.row.extra or last.row.kind in CONTROL:
            for each in (*_successors(block, mask), *points.get(head, ())):
                sources.setdefault(each, []).append(head)
    places = {head: place for place, head in enumerate(inside)}
    alone = {head: sources[head][0] for head in inside if len(sources.get(head, ())) == 1}
    return {head: source for head, source in alone.items() if places[source] < places[head]}


class _Uses(NamedTuple):
    """Registers that instructions access, without x0."""

    read: frozenset[int]
    written: frozenset[int]
    before: frozenset[int]
    """Read before they are written."""


def _uses(block: Block) -> _Uses:
    read: set[int] = set()
    written: set[int] = set()
    before: set[int] = set()
    for _, instruction in block.instructions:
        sources = {instruction.rs1, instruction.rs2, instruction.rs3}
        read |= sources
        before |= sources - written
        if instruction.row.kind is not Kind.STORE:
            written.add(instruction.rd)
    return _Uses(*(frozenset(numbers - {0}) for numbers in (read, written, before)))


# -- returns -------------------------------------------------------------------------------------------------------

LINK = 1
"""The register with the return address, by the calling convention."""
MOST_RETURNS = 3
"""Places that a return is compared with at most."""


def returns(blocks: Sequence[Block], mask: int) -> dict[int, tuple[int, ...]]:
    """Return the targets of the returns that end blocks, by heads: the return addresses of calls that reach them, of
    indirect calls where no other does. Blocks with too many targets are omitted."""
    inside = {block.pc: block for block in blocks}
    edges: dict[int, list[int]] = {}
    calls: dict[int | None, list[int]] = {}
    for block in blocks:
        pc, last = block.instructions[-1]
        if last.row.kind is Kind.JUMP and last.rd == LINK:
            calls.setdefault(target_of(pc, last, mask), []).append(block.end)
            after = [block.end]
        else:
            after = _successors(block, mask)
        edges[block.pc] = [each for each in after if each in inside]
    found: dict[int, dict[int, None]] = {head: {} for head, block in inside.items() if _returns(block)}
    for target, points in calls.items():
        if target is not None:
            for head in found.keys() & _reached(target, edges):
                found[head].update(dict.fromkeys(points))
    indirect = dict.fromkeys(calls.get(None, ()))
    chosen = {head: tuple(each for each in points or indirect if each in inside) for head, points in found.items()}
    return {head: points for head, points in chosen.items() if len(points) <= MOST_RETURNS}


def _returns(block: Block) -> bool:
    last = block.instructions[-1][1]
    return last.row.kind is Kind.JUMP and not last.rd and last.rs1 == LINK
