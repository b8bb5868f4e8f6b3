"""Records of one machine: registers of the hart, clock, posted stores, built-in devices (docs/native-subset.md)."""

from dataclasses import field
from enum import IntEnum
from typing import Final

from pyv_ext.isa.formats import F0
from pyv_ext.machine.traps import MACHINE
from pyv_ext.timing import DEEPEST
from pyv_native.records import array, items, record, records, u8, u16, u32

PAGE_BITS: Final = 12
LINE_BITS: Final = 6
LINE: Final = 1 << LINE_BITS
"""Bytes of a line, the unit in which code is tracked."""
NEVER: Final = 1 << 62
"""Cycle that no run reaches."""
WORD: Final = 0xFFFF_FFFF

PYTHON, CLINT, PLIC, UART = range(4)
"""Kinds of device: implemented in Python, or built in and compiled."""
MSIP, MTIP, MEIP = 1 << 3, 1 << 7, 1 << 11
SSIP, STIP, SEIP = 1 << 1, 1 << 5, 1 << 9
"""Bits of mip: lines of devices, and those that software sets for supervisor mode."""

MIE_BIT, MPIE, MPP, MPRV, TW = 1 << 3, 1 << 7, 3 << 11, 1 << 17, 1 << 21
SIE_BIT, SPIE, SPP, MXR, TVM, TSR = 1 << 1, 1 << 5, 1 << 8, 1 << 19, 1 << 20, 1 << 22
"""Fields of mstatus."""
FS_SHIFT, DIRTY = 13, 3
"""Shift of FS in mstatus, and its value once an f register or fcsr may have changed."""
UXL, SXL, XLEN64 = 3 << 32, 3 << 34, 2
"""Fields of mstatus with 64-bit registers, and their value: 64 bits in user and supervisor mode."""
CBIE, CBCFE = 3 << 4, 1 << 6
"""Fields of menvcfg: cbo.inval, and cbo.clean and cbo.flush, in user mode."""
INTERRUPTS = MSIP | MTIP | MEIP
"""The writable bits of mie."""
SUPERVISOR_INTERRUPTS = SSIP | STIP | SEIP
"""The writable bits of mie for supervisor mode; also writable in mip and mideleg."""
DELEGABLE = 0xB3FF
"""Exceptions that medeleg may delegate: all of the manual except ECALL from machine mode."""
CONTEXTS: Final = 4
"""Values of `HartState.context`."""
ENTRIES: Final = 16
"""Entries of PMP."""

MAX_DEVICES: Final = 64
MAX_MEMORIES: Final = 64
REGISTERS: Final = 256
"""Entries of the hash table of device registers; it is emptied when three in four are used."""
FIFO_DEPTH: Final = 16
"""Characters in the receiver of the UART."""
SENT: Final = 512
"""Maximum characters sent by the UART before Python receives them."""
LOG: Final = 2048
"""Capacity of the core log in records."""
MAX_CALLS: Final = 1 << 10
"""Maximum instructions of a program that native code executes by a call: custom instructions and accesses of device
CSRs. Others take the slow path."""
SUBMIT_FUNCTIONS: Final = 256
"""Maximum submit functions, their active calls, and their return addresses."""


class LogKind(IntEnum):
    """Kind of a record of the core log; `Machine.kinds` has a bit for each that is logged."""

    ENTER = 0
    """A submit function begins: `address` is ra, `value` is sp."""
    RETURN = 1
    """A submit function has returned, before the instruction at `pc`; `value`: 1 if `following` has ended."""
    STORES = 2
    """Consecutive stores to the 64-byte line of memory at `address`."""
    FENCE = 3
    """Consecutive fences."""
    LOAD = 4
    STORE = 5
    """Load of a device register at `address`, store to it."""
    TRAP = 6
    """Trap with the cause `value`, bit 31 for interrupts; the handler begins after `cycles`."""
    MRET = 7
    HANDLER = 8
    """As `TRAP`, for interrupts only, while `TRAP` is disabled."""
    LINES = 9
    """The interrupt bits of mip change to `value`, in the bits of `address`."""
    LEAVE = 10
    """ENQCMD_T was answered: `address` is the descriptor's, `value` its flags word, `operand` rs2[7:0], `answer` an
    `Answer` | RESUMED. Other kinds leave `answer` and `operand` undefined."""
    CSR = 11
    """Read of a device register through a CSR in cycle `start`: `address` is the register's offset; `pc` is 0 where
    Python executed it."""


class Answer(IntEnum):
    """Answer of a device to an instruction that submits a command."""

    REFUSED = 0
    """-EBUSY, or the instruction trapped: firmware may retry."""
    STALLED = 1
    """No answer yet: the instruction stalls."""
    ACCEPTED = 2
    DROPPED = 3
    """0 or another error code: firmware does not retry."""


RESUMED: Final = 1 << 4
"""Flag ORed with `Answer` in `CoreRecord.answer`: the instruction had stalled before."""


@record
class CounterRecord:
    """64-bit counter."""

    base: int = 0
    """Offset to a monotonic count, modulo 2^64; the value itself while the counter is inhibited."""
    inhibited: int = 0


@record
class HartState:
    """Architectural state of the hart, and fields derived from it."""

    x: list[int] = array(F0 + 32)
    """x0..x31; a sink for writes to x0; f0..f31 from index F0."""
    pc: int = 0
    cycle: int = 0
    """Cycle at whose start the next instruction begins."""
    instret: int = 0
    """Instructions retired. Native code has these three in registers; they are exact here whenever it calls Python."""
    fflags: int = 0
    frm: int = 0
    fs: int = 0
    """FS of mstatus; 0 is Off."""
    mstatus: int = 0
    """Without FS."""
    mie: int = 0
    mip: int = 0
    mtvec: int = 0
    mscratch: int = 0
    mepc: int = 0
    mcause: int = 0
    mtval: int = 0
    mcounteren: int = 0
    menvcfg: int = 0
    medeleg: int = 0
    mideleg: int = 0
    """0 without supervisor mode."""
    stvec: int = 0
    sscratch: int = 0
    sepc: int = 0
    scause: int = 0
    stval: int = 0
    scounteren: int = 0
    senvcfg: int = 0
    mcycle: CounterRecord = field(default_factory=CounterRecord)
    minstret: CounterRecord = field(default_factory=CounterRecord)
    pmpcfg: list[int] = array(ENTRIES // 4)
    pmpaddr: list[int] = array(ENTRIES)
    pmp_writes: int = 1
    """Count of writes of pmpcfg and pmpaddr, reset included."""
    priv: int = MACHINE
    """The privilege mode."""
    traps: int = 0
    """Traps taken, interrupts included."""
    interrupts: int = 0
    """Count of interrupts taken."""
    reserved_address: int = NEVER
    """The address that LR reserved; NEVER: none."""
    reserved_word: int = 0
    """The word that LR read."""
    trapped_at: int = NEVER
    trapped_pc: int = 0
    trapped_cause: int = 0
    """The last synchronous trap: count of instructions that had retired, its pc and cause."""
    loop_pc: int = 0
    loop_cause: int = 0
    loop_value: int = 0
    """The first synchronous trap since the last instruction that retired: pc, cause and mtval."""
    restricted: list[int] = array(MACHINE + 1)
    restricted_at: list[int] = array(MACHINE + 1)
    """By privilege mode: whether PMP denies it a right anywhere, and `pmp_writes` when that was computed."""
    guarded: int = 0
    """Whether PMP now restricts fetches, loads or stores."""
    context: int = MACHINE
    """Privilege mode of fetches, loads and stores; `pmp.MIXED` if they differ."""
    context_changed: int = 1
    """Whether `context` or its PMP restrictions have changed since native code last checked."""
    spaces: list[int] = array(CONTEXTS)
    """Host address of the words of native code by context; 0: none."""
    spaces_at: int = 0
    """`pmp_writes` when `spaces` was filled in."""
    read_low: int = 0
    read_end: int = 0
    write_low: int = 0
    write_end: int = 0
    """Ranges of permitted loads and stores, as last computed by `pmp.permit`."""
    user_mode: int = 0
    supervisor_mode: int = 0
    floating: int = 0
    cache_blocks: int = 0
    """Whether user mode, supervisor mode, f registers, and cbo instructions in user mode exist."""
    alignment: int = 4
    """Bytes that instructions are aligned to."""
    misa: int = 0
    hart_id: int = 0
    wide: int = 0
    """Whether registers have 64 bits; values of 2^63 and more are negative here."""
    sign: int = 1 << 31
    """The highest bit of a register: Interrupt in mcause, SD in mstatus."""
    widths: int = 0
    """UXL and SXL of mstatus."""
    has_compare: int = 0
    """Whether stimecmp exists."""
    compares: int = 0
    """STCE of menvcfg: whether stimecmp sets STIP."""


@record
class NativeState:
    """State of native code of the hart, and host addresses of what it accesses in place.

    Native code keeps its progress in a register: instructions retired since `first` << 32 | remaining cycles + BIAS.
    """

    deadline: int = 0
    """Cycle in which the cycle budget ends; it changes while native code runs."""
    first: int = 0
    """Instructions that had retired when native code last read the hart's record."""
    ram: int = 0
    lines: int = 0
    """The RAM of the fast path, and its `Ram.code`."""
    load_ok: int = 0
    """`Bus.load_ok`."""
    space: int = 0
    """Words of the current `engines.fast.space.TranslationCache`."""
    custom: int = 0
    """Table of custom instructions: cycles from the begin of each to the last cycle of its issue."""
    marked: int = 0
    """Entries of marked instructions (`engines.fast.entries.MarkedEntries`)."""
    marked_pc: int = 0
    marked_at: int = -1
    """The last marked instruction, and the progress at that time."""
    flags: int = 0
    store_pcs: int = 0
    store_cycles: int = 0
    store_pages: int = 0
    written: int = 0
    """Tables of a sanitizer (`pyv_ext.bus.shadow`); 0 without one."""


@record
class ClintRecord:
    """Core-local interruptor. 64-bit registers are signed here."""

    msip: u8 = 0
    compare: int = -1
    """mtimecmp."""
    base: int = 0
    """mtime minus ticks, modulo 2^64."""
    stimecmp: int = -1
    has_stimecmp: bool = False
    """Whether stimecmp exists."""
    timer: bool = False
    supervisor_timer: bool = False
    """Levels of the timer interrupts, of mtimecmp and stimecmp, as decided in cycle `last_cycle`."""
    divider: int = 1
    """Cycles per tick."""
    last_cycle: int = 0
    deadline: int = NEVER
    """Cycle of the next decision."""


@record
class PlicRecord:
    """Platform-level interrupt controller: one bit per source."""

    priority0: u32 = 0
    priority1: u32 = 0
    priority2: u32 = 0
    """Bits 0, 1 and 2 of the priorities."""
    pending: u32 = 0
    enable: u32 = 0
    threshold: u32 = 0
    levels: u32 = 0
    service: u32 = 0


@record
class UartRecord:
    """Registers of a 16550A, the receiver's FIFO, and characters on their way to the console."""

    ier: u8 = 0
    fcr: u8 = 0
    lcr: u8 = 0
    mcr: u8 = 0
    scr: u8 = 0
    thre: bool = False
    """Whether the interrupt of the empty transmitter is pending."""
    looped: bool = False
    """Whether the last character sent is looped back."""
    divisor: u16 = 0
    backlog: int = 0
    """Characters of the host that wait for space in the receiver."""
    count: u8 = 0
    """Characters in the receiver."""
    received: list[u8] = array(FIFO_DEPTH)
    sent: list[u8] = items(SENT)


@record
class Wiring:
    """Path of interrupt lines to mip."""

    on: bool = False
    lines: u16 = 0
    """Bits of mip."""
    deadline: int = NEVER
    """Cycle in which the PLIC's output, high now, reaches mip."""
    last_cycle: int = 0
    changed: int = 0
    """Cycle of the last change of MEIP; 0: none."""
    delay: int = 0
    """Cycles from the PLIC's output to mip."""


@record
class DeviceRecord:
    """State of an attached device in the clock, by its index."""

    kind: u8 = PYTHON
    level: bool = False
    """Level of its interrupt line."""
    direct: bool = False
    """Whether the line bypasses the PLIC."""
    source: u32 = 0
    """Mask of its PLIC sources."""
    deadline: int = NEVER
    """Cycle of its next event."""
    buffer: int = 0
    """Host address of the native state of a Python device with a `Link`; 0: no link."""
    deadline_offset: int = 0
    level_offset: int = 0
    """In that buffer: its next event, and the level of its interrupt line."""
    advance: int = 0
    read: int = 0
    write: int = 0
    submit: int = 0
    """Host addresses of its functions (`pyv_ext.protocols.Link`)."""


@record
class RegisterRecord:
    """Device register at a physical address, with the constants of its accesses."""

    tag: int = 0
    """address | size << 32."""
    device_id: int = 0
    """Index of the device."""
    addr: u32 = 0
    """Offset in the device."""
    readable: bool = False
    writable: bool = False
    stable: bool = False
    """Whether reads return the same value until a device changes."""
    logged: bool = False
    """Whether accesses are logged regardless of the enabled kinds."""
    load_cycles: int = 0
    load_acts: int = 0
    """Cycles from the start of a load to its effect."""
    store_cycles: int = 0
    one_way: int = 0
    """Cycles from core to device of a posted store."""
    changes: int = 0
    value: u32 = 0
    """Value of a stable register, read when `Machine.changes` was `changes`."""


@record
class MemoryRecord:
    """Memory of the bus, with its host addresses."""

    base: int = 0
    size: int = 0
    writable: bool = False
    shadowed: bool = False
    """Whether a sanitizer checks each access first."""
    data: int = 0
    lines: int = 0
    watched: int = 0
    """Host addresses of its bytes, of `Ram.code` and of `Ram.watched`."""
    load_cycles: int = 0
    store_cycles: int = 0


@record
class PostedStore:
    """Store on its way to a device."""

    arrival: int = 0
    device_id: int = 0
    addr: u32 = 0
    size: u8 = 0
    value: u32 = 0


@record
class CoreRecord:
    """Record of the core log: 32 bytes."""

    start: int = 0
    """Cycle at whose start the event began."""
    cycles: int = 0
    pc: u32 = 0
    address: u32 = 0
    value: u32 = 0
    kind: u8 = 0
    answer: u8 = 0
    operand: u8 = 0


@record
class DeviceCall:
    """Custom instruction or CSR access that native code executes by a call; decoded instructions refer to it by
    index."""

    kind: u8 = 0
    """PYTHON_CALL: a Python handler that touches no device; SUBMIT: submit the 64 bytes at rs1; READ: rd = the device
    register at `addr`; WRITE: that register = rs1, which is not read."""
    device_id: u8 = 0
    """Index of the device."""
    stable: bool = False
    """Whether reads have no side effect."""
    addr: int = 0
    """Offset of the register."""


PYTHON_CALL, SUBMIT, READ, WRITE = range(4)


@record
class SubmissionSettings:
    """Constants for native ENQCMD_T. All but `observed` are set by the latency probe; `observed` is True until then."""

    observed: bool = True
    """Whether ENQCMD_T and CSR accesses of devices execute in Python, because an observer wants each."""
    response: int = 0
    """Cycles from the answer to the next instruction."""
    flags_offset: int = 0
    """Offset of the flags word in a descriptor."""
    flushed: u32 = 0
    """Mask of descriptor flags: a LEAVE record with one of them set is passed to observers immediately."""
    busy: u32 = 0
    """rd for a full queue: -EBUSY as 32 bits."""


@record
class SubmitCall:
    """Submit function that has not returned."""

    return_address: int = 0
    """Return address."""
    sp: int = 0
    depth: int = 0
    """Traps that were being handled at its entry."""


@record
class Machine:
    """Root record."""

    hart: HartState = field(default_factory=HartState)
    native: NativeState = field(default_factory=NativeState)
    now: int = 0
    """Cycle up to whose start all events have been delivered."""
    next: int = NEVER
    """Cycle of the next event of a device, arrival of a posted store, or change of MEIP by the PLIC."""
    until: int = 0
    """Cycle in which native code must stop."""
    limit: int = 0
    """Cycle of the next event or stop of native code; 0: it must exit at once."""
    leave: bool = False
    guarded: bool = False
    """Whether watchpoints check each access first."""
    synchronized: bool = False
    """Whether no device, handler or instruction has run in Python since the last FENCE.I."""
    changes: int = 1
    """Count of changes of devices."""
    cycles: int = 0
    """Core cycles of the last access; after `wait_for_interrupt`, the cycle that it has reached."""
    wait: int = 0
    """Cycles that a device of Python added to its access."""
    fault: u8 = 0
    """Cause of the trap of the last access; 0: none. After a device of Python: whether it refuses the access."""
    misaligned: bool = False
    """Whether accesses of memory need not be aligned."""
    absent: bool = False
    """Whether `load_csr` has met a missing or inaccessible register. Native code then takes the slow path, which clears
    it."""
    answer: int = 0
    """Value for rd of the last `call_device`, with its sign."""
    recheck_cycle: int = 0
    """Cycle of the next interrupt check of a waiting WFI."""
    drained: int = 0
    """Cycle in which the last posted store arrives."""
    fence_cycle: int = 0
    """Cycle of the last fence that orders stores to memory before those to devices."""
    drain_cycle: int = 0
    """Cycle of the last fence that waits for posted stores."""
    departure: int = 0
    """Index of the oldest entry of `departures`."""
    departures: list[int] = items(DEEPEST)
    """Arrival cycles of the last posted stores, as many as may be in flight."""
    first: int = 0
    """Index in `stores` of the store that arrives first."""
    count: int = 0
    """Posted stores that have not arrived."""
    stores: list[PostedStore] = records(DEEPEST + 1)
    devices: list[DeviceRecord] = records(MAX_DEVICES)
    memories: list[MemoryRecord] = records(MAX_MEMORIES)
    registers: list[RegisterRecord] = records(REGISTERS)
    device_calls: list[DeviceCall] = records(MAX_CALLS)
    submission: SubmissionSettings = field(default_factory=SubmissionSettings)
    kinds: u32 = 0
    """Kinds of the core log that are logged now, as bits."""
    base_kinds: u32 = 0
    """Kinds that are logged everywhere."""
    submission_kinds: u32 = 0
    """Kinds that are logged while submissions are followed."""
    following: bool = False
    """Whether submissions are followed: from the entry of a submit function or, if there are none, from the first
    access of a logged register."""
    depth: int = 0
    """Traps that are being handled, since `following` began."""
    handed_over: bool = False
    """Whether a submission has left the core since then."""
    at_once: bool = False
    """Whether each access of a logged register, and each interrupt, flushes the log."""
    doorbell: u32 = 0
    """Address of the register whose store hands submissions over; 0: none."""
    entries: list[int] = items(SUBMIT_FUNCTIONS)
    """Addresses of the submit functions."""
    returns: list[int] = items(SUBMIT_FUNCTIONS)
    """Return addresses where the engine calls `mark`."""
    call_count: int = 0
    calls: list[SubmitCall] = records(SUBMIT_FUNCTIONS)
    """Active submit functions: `call_count` entries, the latest last."""
    logged: int = 0
    log: list[CoreRecord] = records()
    """Core log: `logged` records, oldest first. Its pages are allocated on first use."""
    clint: ClintRecord = field(default_factory=ClintRecord)
    plic: PlicRecord = field(default_factory=PlicRecord)
    uart: UartRecord = field(default_factory=UartRecord)
    wiring: Wiring = field(default_factory=Wiring)
