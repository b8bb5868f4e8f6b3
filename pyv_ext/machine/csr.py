"""Control and status registers in the native subset (RISC-V privileged manual, version 1.12).

An access happens in an instruction that starts in a cycle: a read samples that cycle, a write takes effect at the end
of the instruction's last cycle. Counters have 64 bits, are writable, and each has an inhibit bit.
"""

from pyv_ext.isa.csr_names import ADDRESSES
from pyv_ext.machine.clint import mtime, replace_high, replace_low
from pyv_ext.machine.pmp import guard, read_config, write_address, write_configs
from pyv_ext.machine.state import (
    CBCFE,
    CBIE,
    DELEGABLE,
    DIRTY,
    ENTRIES,
    FS_SHIFT,
    INTERRUPTS,
    MIE_BIT,
    MPIE,
    MPP,
    MPRV,
    MXR,
    SIE_BIT,
    SPIE,
    SPP,
    SSIP,
    STIP,
    SUPERVISOR_INTERRUPTS,
    TSR,
    TVM,
    TW,
    UXL,
    CounterRecord,
    Machine,
)
from pyv_ext.machine.traps import MACHINE, SUPERVISOR, USER
from pyv_native.intrinsics import u32, wrapping_sub

FFLAGS, FRM, FCSR = ADDRESSES["fflags"], ADDRESSES["frm"], ADDRESSES["fcsr"]
MSTATUS, MISA, MIE, MTVEC = ADDRESSES["mstatus"], ADDRESSES["misa"], ADDRESSES["mie"], ADDRESSES["mtvec"]
MCOUNTEREN, MENVCFG, MSTATUSH = ADDRESSES["mcounteren"], ADDRESSES["menvcfg"], ADDRESSES["mstatush"]
MENVCFGH, MCOUNTINHIBIT = ADDRESSES["menvcfgh"], ADDRESSES["mcountinhibit"]
MSCRATCH, MEPC, MCAUSE = ADDRESSES["mscratch"], ADDRESSES["mepc"], ADDRESSES["mcause"]
MTVAL, MIP = ADDRESSES["mtval"], ADDRESSES["mip"]
PMPCFG, PMPADDR = ADDRESSES["pmpcfg0"], ADDRESSES["pmpaddr0"]
MCYCLE, MINSTRET, CYCLE, TIME = ADDRESSES["mcycle"], ADDRESSES["minstret"], ADDRESSES["cycle"], ADDRESSES["time"]
INSTRET, HIGH, COUNTERS = ADDRESSES["instret"], ADDRESSES["mcycleh"] - MCYCLE, 0x9F
"""`HIGH`: offset from a counter to its upper half. `COUNTERS`: bits of an address that select the counter."""
TSELECT, TDATA3 = ADDRESSES["tselect"], ADDRESSES["tdata3"]
SSTATUS, SIE, STVEC = ADDRESSES["sstatus"], ADDRESSES["sie"], ADDRESSES["stvec"]
SCOUNTEREN, SENVCFG, SSCRATCH = ADDRESSES["scounteren"], ADDRESSES["senvcfg"], ADDRESSES["sscratch"]
SEPC, SCAUSE, STVAL = ADDRESSES["sepc"], ADDRESSES["scause"], ADDRESSES["stval"]
SIP, SATP, MEDELEG, MIDELEG = ADDRESSES["sip"], ADDRESSES["satp"], ADDRESSES["medeleg"], ADDRESSES["mideleg"]
SUPERVISOR_STATUS = SIE_BIT | SPIE | SPP | DIRTY << FS_SHIFT | MXR
"""Writable fields of mstatus that sstatus contains."""
STIMECMP, STIMECMPH, TIME_ENABLED = ADDRESSES["stimecmp"], ADDRESSES["stimecmph"], 2
"""The timer of supervisor mode, and TM of mcounteren."""
MVENDORID, MHARTID, MCONFIGPTR = ADDRESSES["mvendorid"], ADDRESSES["mhartid"], ADDRESSES["mconfigptr"]


# -- counters ----------------------------------------------------------------------------------------------------------


def counter_value(counter: CounterRecord, count: int) -> int:
    """Return a counter at a count."""
    return counter.base if counter.inhibited else wrapping_sub(counter.base, -count)


def set_counter(counter: CounterRecord, value: int, count: int) -> None:
    """Set a counter at a count of the cycles or instructions that it counts."""
    counter.base = value if counter.inhibited else wrapping_sub(value, count)


def inhibit(counter: CounterRecord, inhibited: int, count: int) -> None:
    """Set or clear the inhibit bit of a counter at a count."""
    value = counter_value(counter, count)
    counter.inhibited = inhibited
    set_counter(counter, value, count)


# -- reading -----------------------------------------------------------------------------------------------------------


def permits_csr(machine: Machine, address: int, write: int) -> bool:
    """Check whether an instruction may access a register now, if it exists."""
    hart = machine.hart
    if write and address >> 10 == 3:
        return False
    if FFLAGS <= address <= FCSR:
        return hart.fs != 0
    if hart.priv == MACHINE:
        return True
    if address >> 8 & 3 > hart.priv or (address == SATP and hart.mstatus & TVM):
        return False
    if address & ~(STIMECMPH - STIMECMP) == STIMECMP:
        return hart.compares != 0 and hart.mcounteren & TIME_ENABLED != 0
    if address & ~COUNTERS != CYCLE:
        return True
    enabled = hart.mcounteren
    if hart.supervisor_mode and hart.priv == USER:
        enabled &= hart.scounteren
    return enabled >> (address & 31) & 1 != 0


def load_csr(machine: Machine, address: int, write: int, cycle: int, instret: int) -> int:
    """Read a CSR for an instruction that starts at `cycle`. Sets `absent` if the access is illegal, or the CSR is not
    handled here."""
    if permits_csr(machine, address, write) and not (machine.hart.wide and is_upper_half(address)):
        return read_csr(machine, address, cycle, instret)
    machine.absent = True
    return 0


def is_upper_half(address: int) -> bool:
    """Check for the upper half of a 64-bit CSR, which only a hart with 32-bit registers has."""
    if address & HIGH and (address & ~COUNTERS == CYCLE or address & ~COUNTERS == MCYCLE):
        return True
    if PMPCFG <= address < PMPCFG + ENTRIES // 4 and address & 1:
        return True
    if address == MSTATUSH:
        return True
    return address == MENVCFGH


def read_csr(machine: Machine, address: int, cycle: int, instret: int) -> int:
    """Read a CSR at `cycle`, with `instret` instructions retired. Sets `absent` if it does not exist."""
    hart = machine.hart
    if address == MSCRATCH:
        return hart.mscratch
    if address == MEPC:
        return hart.mepc
    if address == MCAUSE:
        return hart.mcause
    if address == MSTATUS:
        return read_status(machine)
    if address == MTVAL:
        return hart.mtval
    if address == MIE:
        return hart.mie
    if address == MIP:
        return hart.mip
    if address == MTVEC:
        return hart.mtvec
    if address & ~COUNTERS == CYCLE:
        return read_counter(machine, address & COUNTERS, cycle, instret)
    if address & ~COUNTERS == MCYCLE and address & 31 != TIME - CYCLE:
        return read_counter(machine, address & COUNTERS, cycle, instret)
    if address == FFLAGS:
        return hart.fflags
    if address == FRM:
        return hart.frm
    if address == FCSR:
        return hart.frm << 5 | hart.fflags
    if PMPCFG <= address < PMPCFG + ENTRIES // 4:
        return read_config(machine, address - PMPCFG)
    if PMPADDR <= address < PMPADDR + ENTRIES:
        return hart.pmpaddr[address - PMPADDR]
    if address == MISA:
        return hart.misa
    if address == MCOUNTEREN:
        return hart.mcounteren
    if address == MENVCFG:
        return hart.menvcfg | (hart.sign if hart.wide and hart.compares else 0)
    if address == MENVCFGH:
        return hart.sign if hart.compares else 0
    if address == MCOUNTINHIBIT:
        return (1 if hart.mcycle.inhibited else 0) | (4 if hart.minstret.inhibited else 0)
    if address == MHARTID:
        return hart.hart_id
    if is_zero(address):
        return 0
    if hart.supervisor_mode:
        return read_supervisor(machine, address)
    machine.absent = True
    return 0


def read_status(machine: Machine) -> int:
    """Read mstatus."""
    hart = machine.hart
    return hart.mstatus | hart.widths | hart.fs << FS_SHIFT | (hart.sign if hart.fs == DIRTY else 0)


def read_supervisor(machine: Machine, address: int) -> int:
    """Read a CSR of supervisor mode, or of delegation to it. Sets `absent` for any other address."""
    hart = machine.hart
    if address == SSTATUS:
        return read_status(machine) & (SUPERVISOR_STATUS | UXL | hart.sign)
    if address == SEPC:
        return hart.sepc
    if address == SCAUSE:
        return hart.scause
    if address == STVAL:
        return hart.stval
    if address == SSCRATCH:
        return hart.sscratch
    if address == STVEC:
        return hart.stvec
    if address == SIE:
        return hart.mie & hart.mideleg
    if address == SIP:
        return hart.mip & hart.mideleg
    if address == MEDELEG:
        return hart.medeleg
    if address == MIDELEG:
        return hart.mideleg
    if address == SCOUNTEREN:
        return hart.scounteren
    if address == SENVCFG:
        return hart.senvcfg
    machine.absent = address != SATP
    return 0


def read_counter(machine: Machine, offset: int, cycle: int, instret: int) -> int:
    """Read a counter, on RV32 the half that the CSR names, by the offset of the CSR from mcycle, or from cycle. Event
    counters read as 0."""
    hart = machine.hart
    value = 0
    if offset & ~HIGH == 0:
        value = counter_value(hart.mcycle, cycle)
    elif offset & ~HIGH == INSTRET - CYCLE:
        value = counter_value(hart.minstret, instret)
    elif offset & ~HIGH == TIME - CYCLE:
        value = mtime(machine.clint, cycle // machine.clint.divider)
    if hart.wide:
        return value
    return u32(value >> 32) if offset & HIGH else u32(value)


def is_zero(address: int) -> bool:
    """Check for a register that is always 0."""
    if MCOUNTINHIBIT + 3 <= address <= MCOUNTINHIBIT + 31 or TSELECT <= address <= TDATA3:
        return True  # mhpmevent, triggers
    if MVENDORID <= address < MHARTID or address == MCONFIGPTR:
        return True
    return address == MSTATUSH


# -- writing -----------------------------------------------------------------------------------------------------------


def write_csr(machine: Machine, address: int, value: int, end: int, instret: int) -> None:
    """Write the writable bits of a CSR. `end`: the first cycle after the instruction; `instret`: instructions retired
    before it."""
    hart = machine.hart
    if address == MSCRATCH:
        hart.mscratch = value
    elif address == MEPC:
        hart.mepc = value & -hart.alignment
    elif address == MSTATUS:
        write_status(machine, value)
    elif address == MIE:
        hart.mie = value & interrupt_bits(machine)
    elif address == MTVEC:
        hart.mtvec = value & ~2  # modes 2 and 3 are reserved
    elif address == MCAUSE:
        hart.mcause = value
    elif address == MTVAL:
        hart.mtval = value
    elif PMPADDR <= address < PMPADDR + ENTRIES:
        write_address(machine, address - PMPADDR, value)
    elif PMPCFG <= address < PMPCFG + ENTRIES // 4:
        write_configs(machine, address - PMPCFG, value)
    elif address == FFLAGS:
        write_float(machine, hart.frm, value)
    elif address == FRM:
        write_float(machine, value, hart.fflags)
    elif address == FCSR:
        write_float(machine, value >> 5, value)
    elif address == MCYCLE:
        counter = counter_value(hart.mcycle, end)
        set_counter(hart.mcycle, value if hart.wide else replace_low(counter, value), end)
    elif address == MCYCLE + HIGH:
        set_counter(hart.mcycle, replace_high(counter_value(hart.mcycle, end), value), end)
    elif address == MINSTRET:  # the writing instruction does not increment it
        counter = counter_value(hart.minstret, instret)
        set_counter(hart.minstret, value if hart.wide else replace_low(counter, value), instret + 1)
    elif address == MINSTRET + HIGH:
        set_counter(hart.minstret, replace_high(counter_value(hart.minstret, instret), value), instret + 1)
    elif address == MCOUNTINHIBIT:  # the new bits govern the last edge of the writing instruction
        inhibit(hart.mcycle, value & 1, end - 1)
        inhibit(hart.minstret, value & 4, instret)
    elif address == MCOUNTEREN:
        hart.mcounteren = value & 7
    elif address == MENVCFG:
        if hart.cache_blocks:
            hart.menvcfg = cache_block_fields(value)
        if hart.wide:
            enable_compare(machine, value)
    elif address == MENVCFGH:
        enable_compare(machine, value)
    elif hart.supervisor_mode:
        write_supervisor(machine, address, value)


def enable_compare(machine: Machine, value: int) -> None:
    """Write STCE, the highest bit of menvcfg, or of menvcfgh: with it, STIP is the level of stimecmp's timer."""
    hart = machine.hart
    if not hart.has_compare:
        return
    hart.compares = value & hart.sign != 0
    if hart.compares:
        hart.mip = hart.mip & ~STIP | (STIP if machine.clint.supervisor_timer else 0)


def write_supervisor(machine: Machine, address: int, value: int) -> None:
    """Write a CSR of supervisor mode, of delegation to it, or its bits of mip. satp.MODE stays Bare."""
    hart = machine.hart
    if address == SSTATUS:
        write_status(machine, read_status(machine) & ~SUPERVISOR_STATUS | value & SUPERVISOR_STATUS)
    elif address == SEPC:
        hart.sepc = value & -hart.alignment
    elif address == SCAUSE:
        hart.scause = value
    elif address == STVAL:
        hart.stval = value
    elif address == SSCRATCH:
        hart.sscratch = value
    elif address == STVEC:
        hart.stvec = value & ~2
    elif address == SIE:
        hart.mie = hart.mie & ~hart.mideleg | value & hart.mideleg
    elif address == MIP:
        writable = SUPERVISOR_INTERRUPTS & ~STIP if hart.compares else SUPERVISOR_INTERRUPTS
        hart.mip = hart.mip & ~writable | value & writable
    elif address == SIP:
        writable = SSIP & hart.mideleg
        hart.mip = hart.mip & ~writable | value & writable
    elif address == MEDELEG:
        hart.medeleg = value & DELEGABLE
    elif address == MIDELEG:
        hart.mideleg = value & SUPERVISOR_INTERRUPTS
    elif address == SCOUNTEREN:
        hart.scounteren = value & 7
    elif address == SENVCFG and hart.cache_blocks:
        hart.senvcfg = cache_block_fields(value)


def cache_block_fields(value: int) -> int:
    """Return the fields of menvcfg and senvcfg; the reserved value of CBIE becomes 0."""
    return value & (CBCFE if value & CBIE == 2 << 4 else CBIE | CBCFE)


def interrupt_bits(machine: Machine) -> int:
    """Return the bits of mie, and of mip, that exist."""
    return INTERRUPTS | SUPERVISOR_INTERRUPTS if machine.hart.supervisor_mode else INTERRUPTS


def status_fields(machine: Machine) -> int:
    """Return the writable fields of mstatus besides FS and MPP."""
    if not machine.hart.user_mode:
        return MIE_BIT | MPIE
    supervisor = SIE_BIT | SPIE | SPP | MXR | TVM | TSR
    return MIE_BIT | MPIE | MPRV | TW | (supervisor if machine.hart.supervisor_mode else 0)


def write_status(machine: Machine, value: int) -> None:
    """Write mstatus."""
    hart = machine.hart
    writable = status_fields(machine)
    if hart.floating:
        hart.fs = value >> FS_SHIFT & DIRTY
    if not hart.user_mode:
        hart.mstatus = hart.mstatus & ~writable | value & writable
        return
    previous = hart.mstatus
    level = MPP if value & MPP == MPP else 0
    if hart.supervisor_mode and value & MPP == SUPERVISOR << 11:
        level = SUPERVISOR << 11
    hart.mstatus = previous & ~(writable | MPP) | value & writable | level
    if (previous | value) & MPRV:
        guard(machine)


def write_float(machine: Machine, mode: int, flags: int) -> None:
    """Write the rounding mode and the exception flags."""
    hart = machine.hart
    hart.frm = mode & 7
    hart.fflags = flags & 31
    hart.fs = DIRTY
