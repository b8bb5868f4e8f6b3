"""Physical memory protection in the native subset (RISC-V privileged manual, version 1.12).

16 entries with a grain of 4 bytes: OFF, TOR, NA4 and NAPOT; locks; machine mode and those below. An access that is
misaligned, or has 8 bytes, is checked as several accesses, one for each 4 bytes that it touches. With 64-bit registers
an aligned access of 8 bytes also fails if an entry matches only a part of it.
"""

from pyv_ext.machine.state import ENTRIES, MPRV, Machine
from pyv_ext.machine.traps import MACHINE
from pyv_native.intrinsics import i32

READ, WRITE, EXECUTE, ALL = 1, 2, 4, 7
"""Rights that an entry may grant: the bits of its `cfg` byte."""
LOCK = 0x80
WRITABLE = 0x9F
"""Bits of a `cfg` byte: the lock, and those that a write may change."""
TOR, NA4, MODE = 0x08, 0x10, 0x18
SPACE = 1 << 32
"""Addresses of the hart. Entries may match beyond: pmpaddr has 34-bit addresses."""
ADDRESS = (1 << 54) - 1
"""Bits of pmpaddr; a hart with 32-bit registers has the low 32."""
LOCKS = 0x8080_8080
MIXED = 2
"""Context of a hart whose loads and stores are those of another privilege mode than its fetches."""


# -- registers ---------------------------------------------------------------------------------------------------------


def config(machine: Machine, entry: int) -> int:
    """Return the `cfg` byte of an entry."""
    return machine.hart.pmpcfg[entry >> 2] >> 8 * (entry & 3) & 0xFF


def read_config(machine: Machine, register: int) -> int:
    """Read pmpcfg: the bytes of four entries, or of eight where registers have 64 bits."""
    configs = machine.hart.pmpcfg
    return i32(configs[register + 1]) << 32 | configs[register] if machine.hart.wide else configs[register]


def write_configs(machine: Machine, register: int, value: int) -> None:
    """Write pmpcfg, as `read_config` reads it."""
    write_config(machine, register, value)
    if machine.hart.wide:
        write_config(machine, register + 1, value >> 32)


def write_config(machine: Machine, register: int, value: int) -> None:
    """Write the bytes of four entries. Locked bytes keep their content; W without R is reserved and loses its W."""
    previous = machine.hart.pmpcfg[register]
    configs = 0
    for shift in range(0, 32, 8):
        byte = value >> shift & WRITABLE
        if previous >> shift & LOCK:
            byte = previous >> shift & 0xFF
        elif byte & (READ | WRITE) == WRITE:
            byte &= ~WRITE
        configs |= byte << shift
    machine.hart.pmpcfg[register] = configs
    machine.hart.pmp_writes += 1
    guard(machine)


def write_address(machine: Machine, entry: int, value: int) -> None:
    """Write pmpaddr: ignored when the entry is locked, or bounds a locked entry from below."""
    bounds = entry + 1 < ENTRIES and config(machine, entry + 1) & (LOCK | MODE) == LOCK | TOR
    if not config(machine, entry) & LOCK and not bounds:
        machine.hart.pmpaddr[entry] = value & ADDRESS
    machine.hart.pmp_writes += 1
    guard(machine)


# -- matching ----------------------------------------------------------------------------------------------------------


def first_address(machine: Machine, entry: int) -> int:
    """Return the first address that an entry matches."""
    address = machine.hart.pmpaddr[entry]
    mode = config(machine, entry) & MODE
    if mode == TOR:
        return machine.hart.pmpaddr[entry - 1] << 2 if entry else 0
    if mode == NA4:
        return address << 2
    return (address & ~(address ^ address + 1)) << 2  # the lowest 0 bit and the 1 bits below it encode the size


def end_address(machine: Machine, entry: int) -> int:
    """Return the first address above those that an entry matches."""
    address = machine.hart.pmpaddr[entry]
    mode = config(machine, entry) & MODE
    if mode == TOR:
        return address << 2
    if mode == NA4:
        return address + 1 << 2
    return (address | address ^ address + 1) + 1 << 2


def entry_at(machine: Machine, address: int) -> int:
    """Return the first entry that matches an address; ENTRIES: none."""
    for register in range(ENTRIES // 4):
        configs = machine.hart.pmpcfg[register]
        entry = 4 * register
        while configs:
            if configs & MODE and first_address(machine, entry) <= address < end_address(machine, entry):
                return entry
            configs >>= 8
            entry += 1
    return ENTRIES


def rights_at(machine: Machine, address: int, mode: int) -> int:
    """Return the rights of a privilege mode at an address: those of the first entry that matches. Without a match,
    machine mode has all rights, the others none."""
    entry = entry_at(machine, address)
    if entry == ENTRIES:
        return ALL if mode == MACHINE else 0
    rights = config(machine, entry)
    return ALL if mode == MACHINE and not rights & LOCK else rights & ALL


def splits(machine: Machine, edge: int) -> bool:
    """Check whether an edge of an entry may lie within an aligned access."""
    return machine.hart.wide != 0 and edge & 7 != 0


def next_edge(machine: Machine, address: int) -> int:
    """Return the next address at which rights may differ; `SPACE` at the latest."""
    edge = SPACE
    for register in range(ENTRIES // 4):
        configs = machine.hart.pmpcfg[register]
        entry = 4 * register
        while configs:
            if configs & MODE:
                first = first_address(machine, entry)
                end = end_address(machine, entry)
                if address < first:
                    edge = min(edge, first)
                if address < end:
                    edge = min(edge, end)
            configs >>= 8
            entry += 1
    return edge


def allows(machine: Machine, address: int, size: int, rights: int, mode: int) -> bool:
    """Check whether a privilege mode has all of the rights at all bytes of an access."""
    for word in range(-(address & 3), size, 4):
        if rights & ~rights_at(machine, address + word, mode):
            return False
    is_doubleword = machine.hart.wide and size == 8 and not address & 7
    return not is_doubleword or entry_at(machine, address) == entry_at(machine, address + 4)


def restricts(machine: Machine, mode: int) -> bool:
    """Check whether a privilege mode lacks a right at any address, or an entry may split an access; cached until the
    next write."""
    hart = machine.hart
    if (
        mode == MACHINE
        and not hart.wide
        and not (hart.pmpcfg[0] | hart.pmpcfg[1] | hart.pmpcfg[2] | hart.pmpcfg[3]) & LOCKS
    ):
        return False
    if hart.restricted_at[mode] != hart.pmp_writes:
        hart.restricted_at[mode] = hart.pmp_writes
        address = 0
        while address < SPACE and rights_at(machine, address, mode) == ALL and not splits(machine, address):
            address = next_edge(machine, address)
        hart.restricted[mode] = address < SPACE
    return hart.restricted[mode] != 0


# -- the hart's accesses -----------------------------------------------------------------------------------------------


def data_mode(machine: Machine) -> int:
    """Return the privilege mode of loads and stores."""
    hart = machine.hart
    return hart.mstatus >> 11 & 3 if hart.mstatus & MPRV else hart.priv


def guard(machine: Machine) -> None:
    """Update the fields that depend on PMP, the privilege mode and that of loads and stores."""
    hart = machine.hart
    data = data_mode(machine)
    guarded = restricts(machine, hart.priv) or (data != hart.priv and restricts(machine, data))
    context = hart.priv if data == hart.priv else MIXED
    if guarded or hart.guarded or context != hart.context:
        hart.context_changed = True
    hart.guarded = guarded
    hart.context = context
    hart.read_end = 0
    hart.write_end = 0


def permit(machine: Machine, address: int, size: int, right: int) -> bool:
    """Check a load (READ) or a store (WRITE) of the hart against PMP; store the permitted range in `HartState` if it
    passes."""
    hart = machine.hart
    mode = data_mode(machine)
    if not allows(machine, address, size, right, mode):
        return False
    low = 0
    end = 0
    while end < SPACE and (end <= address or (rights_at(machine, end, mode) & right and not splits(machine, end))):
        if not rights_at(machine, end, mode) & right:
            low = next_edge(machine, end)
        elif splits(machine, end):
            low = end
        end = next_edge(machine, end)
    if right == READ:
        hart.read_low = low
        hart.read_end = end
    else:
        hart.write_low = low
        hart.write_end = end
    return True
