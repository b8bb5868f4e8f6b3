"""Outputs that are not in memory yet, in the native subset: a store buffer with forwarding.

A stream retires in order, so a command may end before it may retire. Commands that depend on it read its output here;
the core sees memory, where the output appears at retirement. Outputs are stored here when a command starts, so that
later writes to its operands do not affect them.
"""

from npu_device.abi.opcodes import Opcode
from npu_device.decode.tile_state import TileDecoder
from npu_device.reservation.state import MIN_BLOCK, Access, Entry, Issue, Output
from pyv_native.arena import callback
from pyv_native.intrinsics import copy_bytes


@callback
def report_write(issue: Issue, address: int, size: int) -> int:
    """Report an output that has appeared in memory."""
    raise NotImplementedError


@callback
def write_result(issue: Issue, result: Output) -> int:
    """Write an output that native code cannot write to memory."""
    raise NotImplementedError


def block_class(size: int) -> int:
    """Return the class of the smallest blocks of at least `size` bytes."""
    number = 0
    while MIN_BLOCK << number < size:
        number += 1
    return number


def memory_at(tile: TileDecoder, address: int) -> int:
    """Return the host address of a byte of memory, or 0."""
    for region in tile.regions:
        if region.base <= address < region.end:
            return region.data + address - region.base
    return 0


def add_result(
    issue: Issue, entry: Entry, memory: int, address: int, end: int, row_bytes: int, stride: int, size: int
) -> Output | None:
    """Allocate an uninitialized block of `size` bytes for an output and attach it to a command; None: no block is free.
    `memory`: host address of the output, 0 if Python writes it. `stride`: 0 for a single row."""
    number = block_class(size)
    result = issue.free_blocks[number]
    if result is None:
        return None
    issue.free_blocks[number] = result.next
    result.memory = memory
    result.address = address
    result.end = end
    result.row_bytes = row_bytes
    result.stride = stride
    result.size = size
    result.next = entry.result
    entry.result = result
    result.older = issue.youngest_result
    result.younger = None
    if issue.youngest_result is not None:
        issue.youngest_result.younger = result
    issue.youngest_result = result
    return result


def store(
    issue: Issue, tile: TileDecoder, entry: Entry, address: int, end: int, row_bytes: int, stride: int, size: int,
    source: int, direct: int,
) -> Output | None:  # fmt: skip
    """Add an output that Python has computed, at host address `source`, as `add_result`. `direct`: native code writes
    it to memory."""
    memory = memory_at(tile, address) if direct else 0
    result = add_result(issue, entry, memory, address, end, row_bytes, stride, size)
    if result is not None:
        copy_bytes(result.data, source, size)
    return result


def remove_result(issue: Issue, result: Output) -> None:
    """Free the block of an output."""
    if result.older is not None:
        result.older.younger = result.younger
    if result.younger is None:
        issue.youngest_result = result.older
    else:
        result.younger.older = result.older
    number = block_class(result.size)
    result.next = issue.free_blocks[number]
    issue.free_blocks[number] = result


def publish(issue: Issue, entry: Entry) -> None:
    """Write the outputs of a retiring command to memory."""
    result = entry.result
    entry.result = None
    while result is not None:
        following = result.next
        if not result.memory:
            write_result(issue, result)
        else:
            for at in range(result.size // result.row_bytes):
                copy_bytes(result.memory + at * result.stride, result.data + at * result.row_bytes, result.row_bytes)
            if issue.reports_writes:
                report_write(issue, result.address, result.end - result.address)
        remove_result(issue, result)
        result = following


# -- reads -------------------------------------------------------------------------------------------------------------


def overlaps(issue: Issue, address: int, end: int) -> bool:
    """Check whether an output has some of the bytes."""
    result = issue.youngest_result
    while result is not None:
        if result.address < end and address < result.end:
            return True
        result = result.older
    return False


def forward(result: Output | None, address: int, end: int, row_bytes: int, stride: int, data: int) -> None:
    """Overwrite the packed rows in `data` with the bytes that an output and older outputs contain."""
    while result is not None:
        if result.address < end and address < result.end:
            for at in range(result.size // result.row_bytes):
                forward_row(
                    result.address + at * result.stride, result.row_bytes, result.data + at * result.row_bytes,
                    address, end, row_bytes, stride, data,
                )  # fmt: skip
        result = result.older


def forward_all(issue: Issue, address: int, end: int, row_bytes: int, stride: int, data: int) -> None:
    """Overwrite rows with the bytes that all outputs contain, as `forward`."""
    forward(issue.youngest_result, address, end, row_bytes, stride, data)


def forward_row(
    first: int, size: int, source: int, address: int, end: int, row_bytes: int, stride: int, data: int
) -> None:
    """Overwrite rows with a row of an output, as `forward`."""
    row = max(0, (first - address) // stride) if stride else 0
    begin = address + row * stride
    while begin < end and begin < first + size:
        low = max(begin, first)
        high = min(begin + row_bytes, first + size)
        if low < high:
            copy_bytes(data + row * row_bytes + low - begin, source + low - first, high - low)
        if not stride:
            return
        row += 1
        begin += stride


# -- moves -------------------------------------------------------------------------------------------------------------


def is_move(entry: Entry) -> bool:
    """Check whether a command copies bytes. `words` are 0 if Python has decoded the command."""
    opcode = entry.words[0] & 0xFF
    return opcode == Opcode.LOAD or opcode == Opcode.STORE or opcode == Opcode.COPY


def operand(entry: Entry, written: int) -> Access | None:
    """Return what a move reads, or what it writes."""
    access = entry.accesses
    while access is not None and access.written != written:
        access = access.next
    return access


def row_count(access: Access) -> int:
    """Return the rows of an access."""
    return (access.end - access.low - access.row_bytes) // access.stride + 1 if access.stride else 1


def move_size(entry: Entry) -> int:
    """Return the bytes of a move; 0: the command is not a move."""
    target = operand(entry, 1)
    return row_count(target) * target.row_bytes if target is not None and is_move(entry) else 0


def sample_move(issue: Issue, tile: TileDecoder, entry: Entry) -> bool:
    """Copy what a move reads, as it starts. False: no block is free."""
    source = operand(entry, 0)
    target = operand(entry, 1)
    if source is None or target is None:
        return False
    result = add_result(
        issue, entry, memory_at(tile, target.low), target.low, target.end, target.row_bytes, target.stride,
        move_size(entry),
    )  # fmt: skip
    if result is None:
        return False
    memory = memory_at(tile, source.low)
    for row in range(row_count(source)):
        copy_bytes(result.data + row * source.row_bytes, memory + row * source.stride, source.row_bytes)
    forward(result.older, source.low, source.end, source.row_bytes, source.stride, result.data)
    return True
