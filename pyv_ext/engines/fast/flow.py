"""Control and data flow among blocks: loops, targets of returns, and live-in registers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyv_ext.engines.fast.blocks import CONTROL, BasicBlock, ends_block, target_of
from pyv_ext.isa import OpClass

# -- loops ---------------------------------------------------------------------------------------------------------

LOOP_BLOCKS, LOOP_SIZE = 12, 400
"""Maximum of blocks and of instructions of a loop."""
LOOP_REGISTERS = 12
"""Maximum values that blocks of a loop pass each other without spills on the host."""


class LiveIn(NamedTuple):
    """Live-in registers of blocks, which their predecessors pass as values instead of through memory."""

    sources: frozenset[int]
    """Addresses of the predecessors; of a loop, of its own blocks."""
    registers: tuple[int, ...]
    unsaved: frozenset[int]
    """Live-ins whose copy in the guest CPU state may be stale."""


NO_LIVE_IN = LiveIn(frozenset(), (), frozenset())


def loops(blocks: Sequence[BasicBlock], mask: int) -> list[LiveIn]:
    """Find the innermost loops among blocks that lead to each other without calls."""
    by_head = {block.pc: block for block in blocks if _has_known_successors(block)}
    edges = {head: [pc for pc in _successors(block, mask) if pc in by_head] for head, block in by_head.items()}
    backward = sorted(
        (source - target, target, source) for source in edges for target in edges[source] if target <= source
    )
    result: list[LiveIn] = []
    assigned: set[int] = set()
    for _, first, last in backward:
        within = {head: [pc for pc in edges[head] if first <= pc <= last] for head in edges if first <= head <= last}
        reverse_edges: dict[int, list[int]] = {}
        for head, targets in within.items():
            for target in targets:
                reverse_edges.setdefault(target, []).append(head)
        heads = _reachable(first, within) & _reachable(last, reverse_edges)
        size = sum(len(by_head[head].instructions) for head in heads)
        if heads.isdisjoint(assigned) and len(heads) <= LOOP_BLOCKS and size <= LOOP_SIZE:
            assigned |= heads
            result.append(_loop([by_head[head] for head in sorted(heads)]))
    return result


def _has_known_successors(block: BasicBlock) -> bool:
    """Check whether the successors of a block are known, and it does not end in a call."""
    last = block.instructions[-1][1]
    jump = last.row.op_class is OpClass.JUMP and not last.rd and not last.rs1
    return not ends_block(last) or bool(last.row.extra) or last.row.op_class is OpClass.BRANCH or jump


def _successors(block: BasicBlock, mask: int) -> list[int]:
    pc, last = block.instructions[-1]
    target = target_of(pc, last, mask)
    return [*(() if target is None else (target,)), *(() if last.row.op_class is OpClass.JUMP else (block.end,))]


def _reachable(start: int, edges: Mapping[int, Sequence[int]]) -> set[int]:
    heads, worklist = {start}, [start]
    while worklist:
        for successor in edges.get(worklist.pop(), ()):
            if successor not in heads:
                heads.add(successor)
                worklist.append(successor)
    return heads


def _loop(blocks: Sequence[BasicBlock]) -> LiveIn:
    """Return the registers that a loop accesses; only its upward-exposed reads beyond `LOOP_REGISTERS` of them."""
    uses = [_uses(block) for block in blocks]
    written = frozenset().union(*(use.written for use in uses))
    registers = written.union(*(use.read for use in uses))
    if len(registers) > LOOP_REGISTERS:
        registers = frozenset().union(*(use.exposed for use in uses))
    return LiveIn(frozenset(block.pc for block in blocks), tuple(sorted(registers)), written & registers)


# -- live-in registers -------------------------------------------------------------------------------------------

MAX_EXIT_REGISTERS = 8
"""Maximum live registers that a loop passes to its exits. A loop with more passes none, to spare host registers."""


def live_in(blocks: Sequence[BasicBlock], points: Mapping[int, Sequence[int]], mask: int) -> dict[int, LiveIn]:
    """Return the live-in registers of blocks by their heads: blocks of a loop receive them from each other, others from
    their only predecessor. `points`: targets of returns (see `returns`)."""
    by_head = {block.pc: block for block in blocks}
    result = {head: loop for loop in loops(blocks, mask) for head in loop.sources}
    loop_heads = set(result)
    uses = {head: _uses(block) for head, block in by_head.items()}
    source_of = _single_predecessors(by_head, points, mask)
    demands: dict[int, frozenset[int]] = {}
    for head in reversed(by_head):
        local = uses[head].read | uses[head].written
        total = local.union(*(demands[successor] for successor, source in source_of.items() if source == head))
        demands[head] = total if len(total) <= LOOP_REGISTERS else local
    for head, source in source_of.items():
        source_live_in = result.get(source, NO_LIVE_IN)
        if head in result or (source in loop_heads and len(source_live_in.registers) > MAX_EXIT_REGISTERS):
            continue
        available = uses[source].read | uses[source].written | frozenset(source_live_in.registers)
        registers = demands[head] & available
        if len(registers) > LOOP_REGISTERS:
            registers = uses[head].exposed & available
        unsaved = registers & (uses[source].written | source_live_in.unsaved)
        result[head] = LiveIn(frozenset((source,)), tuple(sorted(registers)), unsaved)
    return result


def _single_predecessors(
    by_head: Mapping[int, BasicBlock], points: Mapping[int, Sequence[int]], mask: int
) -> dict[int, int]:
    """Return the only predecessor of each block that has one, if it is earlier in order, by head."""
    sources: dict[int, list[int]] = {}
    for head, block in by_head.items():
        last = block.instructions[-1][1]
        if not ends_block(last) or last.row.extra or last.row.op_class in CONTROL:
            for successor in (*_successors(block, mask), *points.get(head, ())):
                sources.setdefault(successor, []).append(head)
    order = {head: index for index, head in enumerate(by_head)}
    single = {head: sources[head][0] for head in by_head if len(sources.get(head, ())) == 1}
    return {head: source for head, source in single.items() if order[source] < order[head]}


class _RegisterUses(NamedTuple):
    """Registers that instructions access, without x0."""

    read: frozenset[int]
    written: frozenset[int]
    exposed: frozenset[int]
    """Registers that are read before they are written."""


def _uses(block: BasicBlock) -> _RegisterUses:
    read: set[int] = set()
    written: set[int] = set()
    exposed: set[int] = set()
    for _, instruction in block.instructions:
        sources = {instruction.rs1, instruction.rs2, instruction.rs3}
        read |= sources
        exposed |= sources - written
        if instruction.row.op_class is not OpClass.STORE:
            written.add(instruction.rd)
    return _RegisterUses(*(frozenset(numbers - {0}) for numbers in (read, written, exposed)))


# -- returns -------------------------------------------------------------------------------------------------------

LINK = 1
"""The register with the return address, by the calling convention."""
MAX_RETURNS = 3
"""Maximum of guarded targets of a return."""


def returns(blocks: Sequence[BasicBlock], mask: int) -> dict[int, tuple[int, ...]]:
    """Return the targets of the returns that end blocks, by heads: the return addresses of direct calls that reach
    them, else of all indirect calls. Blocks with too many targets are omitted."""
    by_head = {block.pc: block for block in blocks}
    edges: dict[int, list[int]] = {}
    calls: dict[int | None, list[int]] = {}
    for block in blocks:
        pc, last = block.instructions[-1]
        if last.row.op_class is OpClass.JUMP and last.rd == LINK:
            calls.setdefault(target_of(pc, last, mask), []).append(block.end)
            successors = [block.end]
        else:
            successors = _successors(block, mask)
        edges[block.pc] = [successor for successor in successors if successor in by_head]
    result: dict[int, dict[int, None]] = {head: {} for head, block in by_head.items() if _is_return(block)}
    for target, points in calls.items():
        if target is not None:
            for head in result.keys() & _reachable(target, edges):
                result[head].update(dict.fromkeys(points))
    indirect = dict.fromkeys(calls.get(None, ()))
    targets = {head: tuple(pc for pc in points or indirect if pc in by_head) for head, points in result.items()}
    return {head: points for head, points in targets.items() if len(points) <= MAX_RETURNS}


def _is_return(block: BasicBlock) -> bool:
    last = block.instructions[-1][1]
    return last.row.op_class is OpClass.JUMP and not last.rd and last.rs1 == LINK
